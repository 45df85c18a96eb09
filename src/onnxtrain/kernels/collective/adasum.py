"""AdasumAllReduce: a sum that does not count twice what two gradients have in common.

For each tensor, a from the lower rank and b from the higher one are combined as::

    a·(1 - <a,b> / 2<a,a>) + b·(1 - <a,b> / 2<b,b>)

which is their sum if they are orthogonal and their mean if they are equal. Over more ranks this is
a balanced tree. It is evaluated by halving vectors and doubling distances: at each level a rank
gives one half of what it has to its partner, and in the end the halves are gathered again.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from onnxtrain.distributed.groups import Groups, present
from onnxtrain.distributed.layout import GroupType
from onnxtrain.kernels.collective.flat import divided, joined, sizes
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS

SMALLEST_NORM = sys.float_info.min**0.5
"""Squared norms below this are taken for zero."""
HIERARCHICAL = 2
"""The ``reduce_algo`` for gradients that were already summed inside each machine."""

Span = tuple[int, int]


@kernel(
    "AdasumAllReduce",
    domain=MS,
    view="tensors",
    outputs=0,
    needs=["groups"],
    special="effect",
    T=FLOATS,
)
def adasum_all_reduce(
    *tensors: Tensor, reduce_algo: int = 0, groups: Groups | None
) -> Sequence[Tensor]:
    """The adaptive sum of each tensor over all processes, on the host."""
    run = present(groups)
    first = first_level(run, reduce_algo)
    if first == run.world_size:
        return tensors
    flat = joined(tensors).cpu()
    bounds = list(itertools.pairwise([0, *itertools.accumulate(sizes(tensors))]))
    reduce_by_halves(flat, bounds, run, first)
    return divided(flat.to(tensors[0].device), tensors)


def first_level(groups: Groups, reduce_algo: int) -> int:
    """Distance of the first partner: 1, or the next machine if inside each all are equal."""
    if reduce_algo not in (0, 1, HIERARCHICAL):
        raise ValueError(
            f"reduce_algo {reduce_algo} is unknown\n  have  0 and 1 (over all ranks), "
            "2 (over machines, whose ranks hold equal tensors)"
        )
    world = groups.world_size
    if world & (world - 1):
        raise ValueError(
            f"Adasum cannot reduce over a non-power-of-2 number of ranks, there are {world}"
        )
    return len(groups.ranks(GroupType.NODE_LOCAL_DATA)) if reduce_algo == HIERARCHICAL else 1


def reduce_by_halves(flat: Tensor, bounds: Sequence[Span], groups: Groups, first: int) -> None:
    """Replace the elements of ``flat`` by their adaptive sum; ``bounds`` are the tensors in it."""
    steps: list[tuple[int, Span, Span]] = []
    span, level = (0, flat.numel()), first
    while level < groups.world_size:
        lower = not groups.rank & level
        middle = span[0] + (span[1] - span[0]) // 2
        halves = (span[0], middle), (middle, span[1])
        kept, given = halves if lower else halves[::-1]
        theirs = torch.empty(kept[1] - kept[0], dtype=flat.dtype)
        groups.exchange(flat[slice(*given)], theirs, groups.rank ^ level)
        inside = [_overlap(bound, kept) for bound in bounds]
        _combine(flat[slice(*kept)], theirs, inside, lower, groups, 2 * level)
        steps.append((groups.rank ^ level, kept, given))
        span, level = kept, 2 * level
    for partner, kept, given in reversed(steps):
        groups.exchange(flat[slice(*kept)], flat[slice(*given)], partner)


def _overlap(bound: Span, span: Span) -> slice:
    """The part of a tensor that lies in a span, counted from the span's beginning."""
    begin = min(max(bound[0], span[0]), span[1])
    return slice(begin - span[0], max(min(bound[1], span[1]), begin) - span[0])


def _combine(
    mine: Tensor, theirs: Tensor, parts: Sequence[slice], lower: bool, groups: Groups, width: int
) -> None:
    """Combine two versions of a span, in place, with products taken over whole tensors."""
    a, b = (mine, theirs) if lower else (theirs, mine)
    products = torch.stack([_products(a[part].double(), b[part].double()) for part in parts])
    groups.all_reduce_block(products, width)
    for part, (dot, aa, bb) in zip(parts, products.tolist(), strict=True):
        of_a = 1 - dot / (2 * aa) if aa >= SMALLEST_NORM else 1.0
        of_b = 1 - dot / (2 * bb) if bb >= SMALLEST_NORM else 1.0
        mine[part] = weighted(a[part], of_a, b[part], of_b)


def _products(a: Tensor, b: Tensor) -> Tensor:
    """<a,b>, <a,a>, <b,b>."""
    return torch.stack([a.dot(b), a.dot(a), b.dot(b)])


def weighted(a: Tensor, of_a: float, b: Tensor, of_b: float) -> Tensor:
    """of_a·a + of_b·b in float64, or for halves with one fused multiply-add in float32."""
    if a.dtype is not torch.float16:
        return (of_a * a.double() + of_b * b.double()).to(a.dtype)
    weights = torch.tensor([of_a, of_b], dtype=torch.float32)
    first = weights[0] * a.float()
    # a product of a float32 and a half is exact in float64
    return (weights[1].double() * b.double() + first.double()).float().half()
