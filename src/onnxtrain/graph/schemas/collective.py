"""Communication between processes: reductions, gathers, tensor parallelism, point to point."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import ANY, INT64, op, required
from onnxtrain.graph.schemas.infer import (
    SCALAR_FLAG,
    any_shape,
    from_list,
    same_as,
    same_as_each,
    typed,
)
from onnxtrain.types import BOOL, FLOATS

MESSAGE = {"tag": required("int"), "element_types": required("ints")}

OPS = (
    op("NcclAllReduce", "input+: T -> output+: T", T=FLOATS, group_type=0, infer=same_as_each()),
    op("NcclAllGather", "input+: T -> output+: T", T=FLOATS, group_type=0, infer=same_as_each()),
    op(
        "NcclReduceScatter",
        "input+: T -> output+: T",
        T=FLOATS,
        group_type=0,
        infer=same_as_each(),
    ),
    op("AdasumAllReduce", "input+: T -> output+: T", T=FLOATS, reduce_algo=0, infer=same_as_each()),
    op("MegatronF", "input: T -> output: T", T=FLOATS, infer=same_as(0)),
    op("MegatronG", "input: T -> output: T", T=FLOATS, group_type=0, infer=same_as(0)),
    op(
        "Send",
        "InputSignal: TBool, Remote: TInt64, Data+: each V -> OutputSignal: TBool",
        TBool=BOOL,
        TInt64=INT64,
        V=ANY,
        attributes=MESSAGE,
        infer=SCALAR_FLAG,
    ),
    op(
        "Recv",
        "InputSignal: TBool, Remote: TInt64 -> OutputSignal: TBool, Data+: each V",
        TBool=BOOL,
        TInt64=INT64,
        V=ANY,
        attributes=MESSAGE,
        infer=(SCALAR_FLAG, typed(from_list("element_types", first=1), any_shape)),
    ),
)
