"""Ownership of tensors divided among the ranks of a group: NcclAllGather, NcclReduceScatter.

Shapes do not change. The tensors lie end to end in a buffer, padded so that each rank owns an
equal share; a tensor belongs to the rank in whose share it begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from onnxtrain.distributed.groups import Groups, present
from onnxtrain.distributed.layout import partition
from onnxtrain.kernels.collective.flat import divided, joined, sizes
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS


@kernel(
    "NcclAllGather",
    domain=MS,
    view="tensors",
    outputs=0,
    needs=["groups"],
    special="effect",
    T=FLOATS,
)
def nccl_all_gather(
    *tensors: Tensor, group_type: int = 0, groups: Groups | None
) -> Sequence[Tensor]:
    """Each tensor as its owner has it."""
    run = present(groups)
    ranks = run.ranks(group_type)
    parts = partition(sizes(tensors), len(ranks))
    owners = parts.owners()
    if len(ranks) == 1:
        return tensors
    flat = joined(tensors, parts.padded)
    run.all_gather(flat, group_type)
    return _chosen(owners, ranks.index(run.rank), own=tensors, others=divided(flat, tensors))


@kernel(
    "NcclReduceScatter",
    domain=MS,
    view="tensors",
    outputs=0,
    needs=["groups"],
    special="effect",
    T=FLOATS,
)
def nccl_reduce_scatter(
    *tensors: Tensor, group_type: int = 0, groups: Groups | None
) -> Sequence[Tensor]:
    """Own tensors summed over the group; those of others as this process has them."""
    run = present(groups)
    ranks = run.ranks(group_type)
    parts = partition(sizes(tensors), len(ranks))
    owners = parts.owners()
    if len(ranks) == 1:
        return tensors
    flat = joined(tensors, parts.padded)
    run.reduce_scatter(flat, group_type)
    return _chosen(owners, ranks.index(run.rank), own=divided(flat, tensors), others=tensors)


def _chosen(
    owners: Sequence[int], rank: int, *, own: Sequence[Tensor], others: Sequence[Tensor]
) -> list[Tensor]:
    """Tensors that a rank owns from one list, the rest from another."""
    return [
        mine if owner == rank else other
        for owner, mine, other in zip(owners, own, others, strict=True)
    ]
