"""What optimizers with one node per parameter share; all of it stays on the device."""

from __future__ import annotations

import torch
from torch import Tensor


def scalar(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor of one element with rank 0, so that it broadcasts to any shape."""
    return value.reshape(()).to(dtype)


def gradient_divisor(
    loss_scale: Tensor | None,
    norm: Tensor | None,
    max_norm: float | Tensor,
    dtype: torch.dtype,
) -> Tensor | None:
    """S with g = gradient / S: the loss scale, or norm / max_norm where that clips.

    The norm is that of the scaled gradient. None stands for 1.
    """
    if not isinstance(max_norm, Tensor) and max_norm == 0:
        raise ValueError("max_norm_clip must not be 0")
    scale = None if loss_scale is None else scalar(loss_scale, dtype)
    if norm is None:
        return scale
    norm = scalar(norm, dtype)
    scale = torch.ones_like(norm) if scale is None else scale
    return torch.where(norm > scale * max_norm, norm / max_norm, scale)


def unscaled(gradient: Tensor, divisor: Tensor | None, dtype: torch.dtype) -> Tensor:
    """gradient / S in the type of computation."""
    gradient = gradient.to(dtype)
    return gradient if divisor is None else gradient / divisor


def bias_correction(
    rate: float | Tensor, step: Tensor | None, dtype: torch.dtype
) -> Tensor | float:
    """1 - rate^step from step 1 on, and 1 before."""
    if step is None:
        return 1.0
    step = scalar(step, torch.float64)
    return torch.where(step > 0, 1 - torch.pow(rate, step), 1.0).to(dtype)


def chosen(signal: Tensor | None, new: Tensor, old: Tensor) -> Tensor:
    """The new value, or the old one if there is a signal and it is false."""
    return new if signal is None else torch.where(signal.reshape(()), new, old)


def check_flag(name: str, value: int) -> None:
    """Refuse anything but 0 and 1."""
    if value not in (0, 1):
        raise ValueError(f"{name} is {value}, must be 0 or 1")
