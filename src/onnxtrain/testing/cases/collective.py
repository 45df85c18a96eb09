"""Rows for collectives in a world of one process, where each is the identity."""

from __future__ import annotations

from torch import Tensor

from onnxtrain.testing.case import Case, normal
from onnxtrain.types import MS

_VARIADIC = ("NcclAllReduce", "NcclAllGather", "NcclReduceScatter", "AdasumAllReduce")


def _same(*tensors: Tensor, **_: int) -> tuple[Tensor, ...]:
    return tensors


CASES = [
    Case(
        op,
        [normal(*shape) for shape in shapes],
        _same,
        {} if op == "AdasumAllReduce" else {"group_type": kind},
        domain=MS,
        outputs=len(shapes),
        gradient=False,
        name=f"{name}_{kind}",
    )
    for op in _VARIADIC
    for name, kind, shapes in (
        ("one", 0, [(3, 4)]),
        ("several", 1, [(), (2, 3), (0, 5), (7,)]),
    )
]
CASES += [
    Case("AdasumAllReduce", [normal(5)], _same, {"reduce_algo": algo}, MS, gradient=False)
    for algo in (1, 2)
]
CASES += [
    # a second derivative would need one of NcclAllReduce, which has none
    Case("MegatronF", [normal(2, 3)], lambda x: x, domain=MS, gradient=False),
    Case("MegatronG", [normal(2, 3)], lambda x, group_type: x, {"group_type": 4}, MS),
]
