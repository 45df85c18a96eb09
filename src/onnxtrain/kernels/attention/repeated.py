"""Operands of attention of which there is one for several: repeated, as products and sums do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Operands = tuple[Tensor, Tensor, Tensor]


def alike(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Operands:
    """Queries, keys and values of as many samples; keys of as many heads as values.

    Raises:
        ValueError: if they cannot be multiplied.
    """
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"queries have {q.shape[3]} elements each, but keys {k.shape[3]}")
    if k.shape[2] != v.shape[2]:
        raise ValueError(f"there are {k.shape[2]} keys, but {v.shape[2]} values")
    masks = [1] * 3 if mask is None else [*[1] * (4 - mask.ndim), *mask.shape][:3]
    samples = _all_of("samples", [q.shape[0], k.shape[0], v.shape[0], masks[0]])
    shared = _all_of("heads of keys and values", [k.shape[1], v.shape[1]])
    heads = q.shape[1] if q.shape[1] != 1 else _all_of("heads", [shared, masks[1]])
    rows = _all_of("queries", [q.shape[2], masks[2]])
    wanted = (samples, heads, rows), (samples, shared), (samples, shared)
    return tuple(_repeated(x, lead) for x, lead in zip((q, k, v), wanted, strict=True))  # type: ignore[return-value]


def gathered(dx: Tensor, x: Tensor) -> Tensor:
    """The gradient of what was repeated."""
    return dx if dx.shape == x.shape else dx.sum_to_size(x.shape)


def _all_of(what: str, sizes: Sequence[int]) -> int:
    """The size that is not 1, if there is one."""
    found = {size for size in sizes if size != 1}
    if len(found) > 1:
        raise ValueError(f"numbers of {what} do not fit: {', '.join(map(str, sizes))}")
    return found.pop() if found else 1


def _repeated(x: Tensor, lead: Sequence[int]) -> Tensor:
    """A tensor with so many along its first axes, in storage of its own where there are more."""
    shape = (*lead, *x.shape[len(lead) :])
    return x if x.shape == torch.Size(shape) else x.expand(shape).contiguous()
