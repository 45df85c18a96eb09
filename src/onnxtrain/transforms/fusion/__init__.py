"""Nodes that together are one operator, replaced by it before a model is differentiated."""

from __future__ import annotations

from onnxtrain.transforms.fusion.fuse import Fusion, fuse
from onnxtrain.transforms.fusion.report import Fused, Missed, Report

__all__ = ["Fused", "Fusion", "Missed", "Report", "fuse"]
