"""What gradients of sequences and optionals are made of: sums, zeros, and sequences as stacks."""

from __future__ import annotations

import onnx

from onnxtrain.graph.schemas.declare import ANY, INT64, op, required, sequences_of, type_strings
from onnxtrain.graph.schemas.facts import Facts, tensor_type
from onnxtrain.graph.schemas.infer import fixed, fixed_shape, same_as, typed
from onnxtrain.types import FLOATS, OWN, DataType

_SEQUENCES = sequences_of(ANY)
_OPTIONALS = frozenset(
    f"optional({text})" for text in (*type_strings(FLOATS), *sequences_of(FLOATS))
)
_SIZES = typed(fixed(DataType.INT64), fixed_shape(None))


def element(facts: Facts, output: int) -> onnx.TypeProto | None:
    """The type of the elements of a sequence, which may differ in shape."""
    type_ = facts.type(0)
    return None if type_ is None else tensor_type(_element_type(type_), None)


def _element_type(type_: onnx.TypeProto) -> int:
    return type_.sequence_type.elem_type.tensor_type.elem_type


def unshaped(facts: Facts, output: int) -> onnx.TypeProto | None:
    """A sequence like the first input, whose elements may have any shape."""
    type_ = facts.type(0)
    if type_ is None:
        return None
    found = onnx.TypeProto()
    found.sequence_type.elem_type.tensor_type.elem_type = _element_type(type_)
    return found


def zeros(facts: Facts, output: int) -> onnx.TypeProto | None:
    """A sequence or an optional, as the attributes say."""
    tensor = tensor_type(facts.integer("dtype") or 0, None)
    if tensor is None:
        return None
    inner = tensor
    if facts.integer("sequence"):
        inner = onnx.TypeProto()
        inner.sequence_type.elem_type.CopyFrom(tensor)
    if not facts.integer("optional"):
        return inner
    outer = onnx.TypeProto()
    outer.optional_type.elem_type.CopyFrom(inner)
    return outer


OPS = (
    op(
        "NestedSum",
        "values+: S -> total: S",
        domain=OWN,
        S=_SEQUENCES | _OPTIONALS,
        infer=same_as(0),
    ),
    op(
        "NestedShapes",
        "value: S -> shapes: I",
        domain=OWN,
        S=_SEQUENCES | _OPTIONALS,
        I=INT64,
        infer=_SIZES,
    ),
    op(
        "NestedZeros",
        "shapes: I -> zeros: S",
        domain=OWN,
        S=sequences_of(FLOATS) | _OPTIONALS,
        I=INT64,
        dtype=required("int"),
        sequence=1,
        optional=0,
        infer=zeros,
    ),
    op(
        "SequenceAddAt",
        "sequence: S, position: I, tensor: T -> total: S",
        domain=OWN,
        S=sequences_of(FLOATS),
        T=FLOATS,
        I=frozenset({DataType.INT32, DataType.INT64}),
        infer=same_as(0),
    ),
    op(
        "SequenceSizes",
        "sequence: S -> sizes: I",
        domain=OWN,
        S=_SEQUENCES,
        I=INT64,
        axis=0,
        infer=_SIZES,
    ),
    op(
        "SequenceJoin",
        "sequence: S, shape: I -> tensor: T",
        domain=OWN,
        S=_SEQUENCES,
        T=ANY,
        I=INT64,
        axis=0,
        new_axis=0,
        infer=element,
    ),
    op(
        "SequenceConcat",
        "first: S, second: S -> sequence: S",
        domain=OWN,
        S=_SEQUENCES,
        infer=unshaped,
    ),
    op(
        "SequenceCut",
        "sequence: S, count: I -> rest: S, last: S",
        domain=OWN,
        S=_SEQUENCES,
        I=INT64,
        infer=unshaped,
    ),
    op(
        "StackLoop",
        "M?: I, cond?: B, given*: each V -> results+: each V",
        domain=OWN,
        I=INT64,
        B=frozenset({DataType.BOOL}),
        V=frozenset(type_strings(ANY)) | _SEQUENCES | _OPTIONALS,
        body=required("graph"),
        pops=0,
        pushes=0,
    ),
)
