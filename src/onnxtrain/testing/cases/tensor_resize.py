"""Rows."""

from onnxtrain.testing.case import Case

CASES: list[Case] = []
