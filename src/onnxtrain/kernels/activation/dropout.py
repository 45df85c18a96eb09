"""Dropout in all its forms, and the gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from onnxtrain.kernels.activation.mask import (
    all_kept,
    drop,
    keep_mask,
    pack,
    rate_of,
    unpack,
)
from onnxtrain.kernels.precision import store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single
from onnxtrain.types import FLOATS, MS


@kernel("Dropout", since=7, until=9, T=FLOATS, view={"data": 0}, outputs=2)
def dropout_inference(data: Tensor, *, ratio: float = 0.5) -> tuple[Tensor, Tensor]:
    """Y = data; these versions know inference only."""
    return data, torch.ones_like(data)


@kernel("Dropout", since=10, until=11, T=FLOATS, view={"data": 0}, outputs=2)
def dropout_inference_mask(data: Tensor, *, ratio: float = 0.5) -> tuple[Tensor, Tensor]:
    """Y = data; these versions know inference only."""
    return data, torch.ones_like(data, dtype=torch.bool)


def _rate(ratio: float | None, training_mode: bool | None, default_mode: bool = False) -> float:
    """At which rate to drop: none unless training."""
    rate = rate_of(ratio)
    training = default_mode if training_mode is None else single(training_mode)
    return rate if training else 0.0


@kernel(
    "Dropout",
    since=12,
    T=FLOATS,
    host=["ratio", "training_mode"],
    view={"data": 0},
    needs=["rng", "wanted"],
    outputs=2,
)
def dropout(
    data: Tensor,
    ratio: float | None = None,
    training_mode: bool | None = None,
    *,
    seed: int | None = None,
    rng: torch.Generator | None = None,
    wanted: tuple[bool, ...] = (True, True),
) -> tuple[Tensor, Tensor | None]:
    """Y = data / (1 - ratio) where the mask is true, else 0; Y = data unless training."""
    rate = _rate(ratio, training_mode)
    if rate == 0:
        return data, keep_mask(data, rate, seed, rng) if any(wanted[1:]) else None
    mask = keep_mask(data, rate, seed, rng)
    return drop(data, mask, rate), mask


@kernel("DropoutGrad", domain=MS, T=FLOATS, host=["ratio", "training_mode"], inplace=["dy"])
def dropout_grad(
    dy: Tensor,
    mask: Tensor,
    ratio: float | None = None,
    training_mode: bool | None = None,
    *,
    seed: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """dX = dY / (1 - ratio) where the mask is true, else 0; dX = dY unless training."""
    rate = _rate(ratio, training_mode, default_mode=True)
    if rate == 0:
        return dy.clone() if out is None else out.copy_(dy)
    return drop(dy, mask.reshape(dy.shape), rate, out)


@kernel(
    "BitmaskDropout",
    domain=MS,
    T=FLOATS,
    host=["ratio", "training_mode"],
    view={"data": 0},
    needs=["rng", "wanted"],
    outputs=2,
)
def bitmask_dropout(
    data: Tensor,
    ratio: float | None = None,
    training_mode: bool | None = None,
    *,
    seed: int | None = None,
    rng: torch.Generator | None = None,
    wanted: tuple[bool, ...] = (True, True),
) -> tuple[Tensor, Tensor | None]:
    """Dropout, with the mask packed into 32-bit words."""
    rate = _rate(ratio, training_mode)
    want_mask = any(wanted[1:])
    if rate == 0:
        return data, all_kept(data) if want_mask else None
    mask = keep_mask(data, rate, seed, rng)
    return drop(data, mask, rate), pack(mask) if want_mask else None


@kernel("BitmaskDropoutGrad", domain=MS, T=FLOATS, host=["ratio", "training_mode"], inplace=["dy"])
def bitmask_dropout_grad(
    dy: Tensor,
    mask: Tensor,
    ratio: float | None = None,
    training_mode: bool | None = None,
    *,
    seed: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """DropoutGrad, with the mask packed into 32-bit words."""
    kept = unpack(mask, dy)
    return dropout_grad(dy, kept, ratio, training_mode, out=out)


@kernel(
    "BiasDropout",
    domain=MS,
    T=FLOATS,
    host=["ratio", "training_mode"],
    needs=["rng"],
    outputs=2,
)
def bias_dropout(
    data: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    ratio: float | None = None,
    training_mode: bool | None = None,
    *,
    seed: int | None = None,
    rng: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Y = Dropout(data + bias) + residual."""
    rate = _rate(ratio, training_mode)
    _check_bias(data, bias, residual)
    mask = keep_mask(data, rate, seed, rng)
    total = widen(data) + widen(bias)
    if rate > 0:
        total = drop(total, mask, rate, out=total)
    if residual is not None:
        total = total.add_(residual)
    return store(total, data), mask


def _check_bias(data: Tensor, bias: Tensor, residual: Tensor | None) -> None:
    if bias.shape not in (data.shape, data.shape[-1:]):
        raise ValueError(
            f"bias has shape {tuple(bias.shape)}, allowed are the shape of data, "
            f"{tuple(data.shape)}, and that of its last axis"
        )
    if residual is not None and residual.shape != data.shape:
        raise ValueError(
            f"residual has shape {tuple(residual.shape)}, allowed is that of data, "
            f"{tuple(data.shape)}"
        )


@kernel(
    "BitmaskBiasDropout",
    domain=MS,
    T=FLOATS,
    host=["ratio", "training_mode"],
    needs=["rng", "wanted"],
    outputs=2,
)
def bitmask_bias_dropout(
    data: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    ratio: float | None = None,
    training_mode: bool | None = None,
    *,
    seed: int | None = None,
    rng: torch.Generator | None = None,
    wanted: tuple[bool, ...] = (True, True),
) -> tuple[Tensor, Tensor | None]:
    """BiasDropout, with the mask packed into 32-bit words."""
    output, mask = bias_dropout(data, bias, residual, ratio, training_mode, seed=seed, rng=rng)
    return output, pack(mask) if any(wanted[1:]) else None
