"""Sums over a group: NcclAllReduce, and the two halves of tensor parallelism."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from onnxtrain.distributed.groups import Groups, present
from onnxtrain.kernels.collective.flat import divided, joined
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, MS


@kernel(
    "NcclAllReduce",
    domain=MS,
    view="tensors",
    outputs=0,
    needs=["groups"],
    special="effect",
    T=FLOATS,
)
def nccl_all_reduce(
    *tensors: Tensor, group_type: int = 0, groups: Groups | None
) -> Sequence[Tensor]:
    """Each tensor summed over the processes of a group."""
    run = present(groups)
    if len(run.ranks(group_type)) == 1:
        return tensors
    flat = joined(tensors)
    run.all_reduce(flat, group_type)
    return divided(flat, tensors)


@kernel("MegatronF", domain=MS, view="x", T=FLOATS)
def megatron_f(x: Tensor) -> Tensor:
    """x for every process that shares the layer; its gradient is summed over them."""
    return x


@kernel("MegatronG", domain=MS, view="x", needs=["groups"], special="effect", T=FLOATS)
def megatron_g(x: Tensor, *, group_type: int = 0, groups: Groups | None) -> Tensor:
    """x summed over the processes that share the layer; its gradient is copied to them."""
    return nccl_all_reduce(x, group_type=group_type, groups=groups)[0]
