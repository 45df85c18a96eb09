"""Order and boundaries: barriers, events, the line between forward and backward, resets."""

from __future__ import annotations

import onnx

from onnxtrain.graph.schemas.declare import ANY, INT64, op, optional, required
from onnxtrain.graph.schemas.facts import Facts, tensor_type
from onnxtrain.graph.schemas.infer import SCALAR_FLAG, same_as, same_as_each
from onnxtrain.types import BOOL, FLOATS


def yielded_gradient(facts: Facts, output: int) -> onnx.TypeProto | None:
    """Gradient of the output-th differentiable input.

    Its shape is certain only for full-shape outputs: for others a scalar zero may be fed.
    """
    constant = facts.integers("non_differentiable_outputs")
    differentiable = [index for index in range(facts.inputs) if index not in constant]
    if output >= len(differentiable):
        return None
    source = differentiable[output]
    if source in facts.integers("full_shape_outputs"):
        return facts.type(source)
    return tensor_type(facts.dtype(source), None)


OPS = (
    op("Group", "input_tensors+: each T -> done: B", T=ANY, B=BOOL, infer=SCALAR_FLAG),
    op("PassThrough", "inputs+: each T -> outputs+: each T", T=ANY, infer=same_as_each()),
    op(
        "RecordEvent",
        "EventIdentifier: TInt64, InputData+: each T -> OutputData*: each T",
        TInt64=INT64,
        T=ANY,
        infer=same_as_each(1),
    ),
    op(
        "WaitEvent",
        "EventIdentifier: TInt64, InputData+: each T -> OutputData+: each T",
        TInt64=INT64,
        T=ANY,
        infer=same_as_each(1),
    ),
    op(
        "YieldOp",
        "module_outputs+: each T -> module_outputs_grad*: each T",
        T=ANY,
        non_differentiable_outputs=optional("ints"),
        full_shape_outputs=required("ints"),
        infer=yielded_gradient,
    ),
    op(
        "ZeroGradient",
        "old_gradient: T1, reset_signal: T2 -> zero_gradient: T1",
        T1=FLOATS,
        T2=ANY,
        infer=same_as(0),
    ),
)
