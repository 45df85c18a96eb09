"""Reductions over axes, positions of extremes, and what broadcasting must sum back."""

from __future__ import annotations

import onnxtrain.kernels.reduction.arg
import onnxtrain.kernels.reduction.broadcast
import onnxtrain.kernels.reduction.norm
import onnxtrain.kernels.reduction.reduce  # noqa: F401
