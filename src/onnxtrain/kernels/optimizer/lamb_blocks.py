"""LAMB of one parameter on a CPU, in blocks of which all that is made stays in the cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from onnxtrain.kernels import blocks
from onnxtrain.kernels.optimizer.lamb_together import Form, Group, Shared
from onnxtrain.kernels.optimizer.scaling import bias_correction, gradient_divisor, scalar

Rooms = dict[torch.dtype, Tensor]
Blocks = list[tuple[Tensor, ...]]


def takes(p: Group, shared: Shared) -> bool:
    """Whether a parameter can be cut into blocks: tensors of one shape, all to be updated."""
    if not blocks.alike(*(t for t in p if t is not None)):
        return False
    return shared.update is None or bool(shared.update.reshape(()))


def updated_in_blocks(p: Group, form: Form, shared: Shared, rooms: Rooms) -> list[Tensor | None]:
    """New weights, the step that was taken, moments and 16-bit weights.

    The step's place holds its direction until its length is known. Rooms are for all parameters.
    """
    new = [None if t is None else torch.empty_like(t) for t in p]
    old_blocks, new_blocks = ([*blocks.flat(*(t for t in ts if t is not None))] for ts in (p, new))
    scratch = _scratch(rooms, p.weights)
    squares = _directions(old_blocks, new_blocks, form, shared, scratch)
    rate = trust(squares, scalar(shared.rate, scratch.dtype), *shared.ratios)
    for (w, *_), (moved, taken, _, _, *mixed) in zip(old_blocks, new_blocks, strict=True):
        delta = scratch[0, : len(w)].copy_(taken).mul_(-rate)
        torch.add(w, delta, out=moved)
        if not _finite(moved.sum()):
            finite = moved.isfinite()
            moved.copy_(torch.where(finite, moved, w))
            delta = torch.where(finite, delta, 0.0)
        taken.copy_(delta)
        for copy in mixed:
            copy.copy_(moved)
    return new


def _scratch(rooms: Rooms, weights: Tensor) -> Tensor:
    """Four rows in which the numbers of a block are computed; new memory costs more to get."""
    room, size = rooms.get(weights.dtype), min(blocks.size(), weights.numel())
    if room is None or room.shape[1] < size:
        room = rooms[weights.dtype] = weights.new_empty(4, size)
    return room


def _directions(
    old: Blocks, new: Blocks, form: Form, shared: Shared, scratch: Tensor
) -> tuple[Tensor, Tensor]:
    """Write directions and moments; returns the squares of the norms of weights and directions.

    A direction that is not finite is 0, and its moments stay as they are.
    """
    work = scratch.dtype
    divisor = gradient_divisor(shared.loss_scale, shared.gradient_norm, form.max_norm, work)
    betas = form.alpha, form.beta
    c1, c2 = (bias_correction(beta, shared.step, torch.float64) for beta in betas)
    # (m / c1) / (sqrt(v / c2) + epsilon) is m / (factor * sqrt(v) + least)
    factor, least = c1 / c2**0.5, c1 * form.epsilon
    squares = torch.zeros(2, dtype=torch.float64)
    for (w, g, m, v, *_), (_, direction, first, second, *_) in zip(old, new, strict=True):
        wide, room_m, room_v, d = scratch[:, : len(w)]
        g = wide.copy_(g)
        if divisor is not None:
            g.div_(divisor)
        new_m = _scaled(m, form.alpha, first, room_m).add_(g, alpha=1 - form.alpha)
        new_v = _scaled(v, form.beta, second, room_v).addcmul_(g, g, value=1 - form.beta)
        root = torch.sqrt(new_v, out=g).mul_(factor).add_(least)
        torch.mul(w, form.decay, out=d).addcdiv_(new_m, root)
        if not _finite(total := _square(direction.copy_(d), root)):
            finite = d.isfinite()
            direction.copy_(torch.where(finite, d, 0.0))
            new_m, new_v = torch.where(finite, new_m, m), torch.where(finite, new_v, v)
            total = _square(direction, root)
        first.copy_(new_m)
        second.copy_(new_v)
        squares += torch.stack([_square(w, root), total])
    return squares[0].to(work), squares[1].to(work)


def _square(x: Tensor, space: Tensor) -> Tensor:
    """The sum of x², whose terms need space."""
    wide = x if x.dtype == space.dtype else space.copy_(x)
    return torch.mul(wide, wide, out=space).sum()


def _scaled(old: Tensor, factor: float, new: Tensor, room: Tensor) -> Tensor:
    """old * factor in the type of the room, right in its new place if that has the type."""
    if new.dtype == room.dtype:
        return torch.mul(old, factor, out=new)
    return room.copy_(old).mul_(factor)


def _finite(total: Tensor) -> bool:
    """Whether a sum is finite: so are all of its terms then."""
    return math.isfinite(float(total))


def trust(squares: tuple[Tensor, Tensor], rate: Tensor, low: float, high: float) -> Tensor:
    """rate * clamp(|w| / |d|), or the rate itself if one of the norms is 0."""
    w, d = squares
    ratio = (w / d).sqrt().clamp(max=high).clamp(min=low)
    return torch.where((w != 0) & (d != 0), rate * ratio, rate)
