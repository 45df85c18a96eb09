"""When is a result good enough: the one rule for every operator and element type.

A result is compared with the truth, which is computed in float64 from the inputs as rounded to the
type under test. Let *own* be the largest error that torch itself makes when it evaluates the same
formula in that type. A result passes if

* it is NaN or infinite exactly where the truth, rounded to its type, is, and
* its largest error is at most ``2 * own + FLOOR * eps * largest``,

where ``eps`` is the type's epsilon and ``largest`` the largest finite magnitude in the truth.
Whole numbers and truth values must be equal. There are no other tolerances.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

FLOOR = 4
"""Rounding steps, relative to the largest element, that any result may be off."""


def mismatch(ours: Any, truth: Any, own: float, dtype: torch.dtype | None = None) -> str | None:
    """Why a result is not good enough, or None if it is.

    Args:
        ours: A tensor, or a list of tensors.
        truth: The same in float64 (whole numbers: in any type that holds them).
        own: Largest error of torch itself, see ``largest_error``.
        dtype: The element type that the result must have, if it is known.
    """
    if isinstance(truth, (list, tuple)):
        return _sequences(ours, truth, own, dtype)
    if isinstance(truth, np.ndarray):
        return None if np.array_equal(ours, truth) else f"{ours!r} instead of {truth!r}"
    if not isinstance(ours, torch.Tensor):
        return f"a {type(ours).__name__} instead of a tensor"
    ours, truth = ours.detach().cpu(), truth.detach().cpu()
    if dtype is not None and ours.dtype != dtype:
        return f"element type {ours.dtype} instead of {dtype}"
    if ours.shape != truth.shape:
        return f"shape {list(ours.shape)} instead of {list(truth.shape)}"
    if not ours.dtype.is_floating_point:
        return _unequal(ours, truth)
    return _inexact(ours, truth, own)


def _sequences(ours: Any, truth: Any, own: float, dtype: torch.dtype | None) -> str | None:
    if not isinstance(ours, (list, tuple)) or len(ours) != len(truth):
        return f"{ours!r} instead of a sequence of {len(truth)}"
    for index, (item, true) in enumerate(zip(ours, truth, strict=True)):
        if found := mismatch(item, true, own, dtype):
            return f"element {index}: {found}"
    return None


def largest_error(values: Any, truth: Any) -> float:
    """The largest error among elements that are finite in both."""
    if isinstance(truth, (list, tuple)):
        return max((largest_error(v, t) for v, t in zip(values, truth, strict=True)), default=0.0)
    if isinstance(truth, np.ndarray):
        return 0.0
    difference = (_wide(values) - _wide(truth)).abs()
    difference = difference[torch.isfinite(difference)]
    return float(difference.max()) if difference.numel() else 0.0


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.detach().cpu().to(torch.float64)


def _inexact(ours: torch.Tensor, truth: torch.Tensor, own: float) -> str | None:
    wide, truth = _wide(ours), _wide(truth)
    rounded = _wide(truth.to(ours.dtype))
    special = ~torch.isfinite(rounded)
    same = (wide == rounded) | (torch.isnan(wide) & torch.isnan(rounded))
    wrong = torch.where(special, ~same, ~torch.isfinite(wide))
    if wrong.any():
        return f"NaN or infinity differ at {_first(wrong, wide, rounded)}"
    usual = ~special
    if not usual.any():
        return None
    largest = float(truth[usual].abs().max())
    allowed = 2 * own + FLOOR * torch.finfo(ours.dtype).eps * largest
    error = torch.where(usual, (wide - truth).abs(), 0.0)
    if float(error.max()) <= allowed:
        return None
    where = _first(error == error.max(), wide, truth)
    return f"error {float(error.max()):.3g} is above {allowed:.3g} (torch: {own:.3g}) at {where}"


def _unequal(ours: torch.Tensor, truth: torch.Tensor) -> str | None:
    if truth.dtype.is_floating_point:
        wrong = _wide(ours) != truth
    elif ours.dtype is torch.bool or truth.dtype is torch.bool:
        wrong = ours.to(torch.int64) != truth.to(torch.int64)
    else:
        wrong = ours.to(torch.int64) != truth.to(ours.dtype).to(torch.int64)
    return f"different at {_first(wrong, ours, truth)}" if wrong.any() else None


def _first(wrong: torch.Tensor, ours: torch.Tensor, truth: torch.Tensor) -> str:
    index = tuple(int(i) for i in wrong.nonzero()[0])
    return f"{list(index)}: {ours[index].item()!r} instead of {truth[index].item()!r}"
