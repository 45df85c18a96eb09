"""Dropout in all its forms, and the gradients."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from onnxtrain.kernels import blocks, fast
from onnxtrain.kernels.activation.mask import (
    all_kept,
    drop,
    keep_mask,
    pack,
    packed_size,
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
    return dropped(data, rate, seed, rng)


def dropped(
    data: Tensor, rate: float, seed: int | None, rng: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Y = data / (1 - rate) where the mask is true, else 0; the mask. The rate is not 0."""
    if quick := _fast(data, seed):
        pair: tuple[Tensor, Tensor] = quick.drop(data, rate, seed, rng)
        return pair
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
    if mask.dtype is torch.bool and mask.is_contiguous() and (quick := _fast(dy)):
        dx: Tensor = quick.drop_grad(dy, mask, rate, out)
        return dx
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
    if quick := _fast(data, seed):
        pair: tuple[Tensor, Tensor] = quick.drop(data, rate, seed, rng, packed=True)
        return pair
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
    rate = _rate(ratio, training_mode, default_mode=True)
    whole = mask.numel() == packed_size(dy) and mask.is_contiguous()
    if rate > 0 and whole and (quick := _fast(dy)):
        dx: Tensor = quick.drop_grad(dy, mask, rate, out)
        return dx
    if rate > 0 and whole and blocks.ready(dy, mask, dy if out is None else out):
        room = torch.empty_like(dy) if out is None else out
        words = mask.view(-1).split(blocks.size() // 32)
        for (target, part), packed in zip(blocks.flat(room, dy), words, strict=True):
            drop(part, unpack(packed, part), rate, out=target)
        return room
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
    if rate > 0 and (quick := _fast_bias(data, bias, residual, seed)):
        pair: tuple[Tensor, Tensor] = quick.drop(
            data, rate, seed, rng, bias=bias, residual=residual
        )
        return pair
    mask = keep_mask(data, rate, seed, rng)
    given = (data, mask) if residual is None else (data, mask, residual)
    if bias.shape != data.shape[-1:] or not blocks.ready(*given, bias):
        return store(_biased(bias, rate, *given), data), mask
    room, bias = torch.empty_like(data), widen(bias)
    for target, *parts in blocks.rows(data.numel() // bias.numel(), room, *given):
        target.copy_(_biased(bias, rate, *parts))
    return room, mask


def _biased(
    bias: Tensor, rate: float, data: Tensor, mask: Tensor, residual: Tensor | None = None
) -> Tensor:
    total = widen(data) + widen(bias)
    if rate > 0:
        total = drop(total, mask, rate, out=total)
    return total if residual is None else total.add_(widen(residual))


def _fast(data: Tensor, seed: int | None = None) -> ModuleType | None:
    """The Triton kernels for dropout, if they take these.

    However few elements there are, one launch of these is less than several of torch's.
    """
    if fast.ready(data, smallest=1) and fast.load("dropout").takes(seed):
        return fast.load("dropout")
    return None


def _fast_bias(
    data: Tensor, bias: Tensor, residual: Tensor | None, seed: int | None
) -> ModuleType | None:
    """The same for a bias along the last axis and a residual that lies as the data do."""
    dense = bias.is_contiguous() and (residual is None or residual.is_contiguous())
    return _fast(data, seed) if dense and bias.shape == data.shape[-1:] else None


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
    rate = _rate(ratio, training_mode)
    _check_bias(data, bias, residual)
    if rate > 0 and (quick := _fast_bias(data, bias, residual, seed)):
        pair: tuple[Tensor, Tensor] = quick.drop(
            data, rate, seed, rng, bias=bias, residual=residual, packed=True
        )
        return pair
    output, mask = bias_dropout(data, bias, residual, ratio, training_mode, seed=seed, rng=rng)
    return output, pack(mask) if any(wanted[1:]) else None
