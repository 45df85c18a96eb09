"""Rows for activations."""

from __future__ import annotations

from onnxtrain.testing.case import Case, rows
from onnxtrain.testing.cases.activation import dropout, gated, pointwise, softmax

CASES: list[Case] = rows(module.CASES for module in (dropout, gated, pointwise, softmax))
