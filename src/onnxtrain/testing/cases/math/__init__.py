"""Rows for mathematics."""

from __future__ import annotations

from onnxtrain.testing.case import Case, rows
from onnxtrain.testing.cases.math import elementwise, integers, logic, matmul, scale

CASES: list[Case] = rows(module.CASES for module in (elementwise, integers, logic, matmul, scale))
