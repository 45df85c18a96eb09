"""Which numbers are infinite or not a number."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOAT8, FLOATS, MS


@kernel("IsNaN", since=9, T1=FLOATS)
def is_nan(x: Tensor) -> Tensor:
    """Whether x is not a number."""
    return torch.isnan(x)


@kernel("IsNaN", since=20, T1=FLOAT8)
def is_nan_float8(x: Tensor) -> Tensor:
    """Whether x is not a number."""
    return torch.isnan(widen(x))


@kernel("IsInf", since=10, T1=FLOATS)
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """Whether x is infinite, of the signs asked for."""
    if detect_negative and detect_positive:
        return torch.isinf(x)
    if detect_negative:
        return torch.isneginf(x)
    if detect_positive:
        return torch.isposinf(x)
    return torch.zeros_like(x, dtype=torch.bool)


@kernel("IsInf", since=20, T1=FLOAT8)
def is_inf_float8(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """Whether x is infinite, of the signs asked for."""
    return is_inf(widen(x), detect_negative=detect_negative, detect_positive=detect_positive)


@kernel("IsFinite", domain=MS, T=FLOATS)
def is_finite(x: Tensor) -> Tensor:
    """Whether x is neither infinite nor NaN."""
    return torch.isfinite(x)


@kernel("IsAllFinite", domain=MS, V=FLOATS)
def is_all_finite(*xs: Tensor, isinf_only: int = 0, isnan_only: int = 0) -> Tensor:
    """Whether no element of any input is infinite or NaN (or only one of the two)."""
    if isinf_only and isnan_only:
        raise ValueError("isinf_only and isnan_only are both set, allowed is one of them")
    if fast.ready_together(xs):
        kinds = {"infinite": not isnan_only, "nan": not isinf_only}
        found: Tensor | None = fast.load("many").all_finite(xs, **kinds)
        if found is not None:
            return found
    bad: Callable[[Tensor], Tensor]
    if isinf_only:
        bad = torch.isinf
    elif isnan_only:
        bad = torch.isnan
    else:
        return torch.stack([torch.isfinite(x).all() for x in xs]).all()
    return ~torch.stack([bad(x).any() for x in xs]).any()
