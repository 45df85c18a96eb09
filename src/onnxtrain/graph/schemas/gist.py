"""Codecs that keep activations small between the forward and the backward pass."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import ANY, INT64, UINT8, WIDE, op, required
from onnxtrain.graph.schemas.facts import Facts, Shape
from onnxtrain.graph.schemas.infer import (
    any_shape,
    fixed,
    flag,
    from_attribute,
    given_by,
    of,
    packed,
    shape_of,
    typed,
)
from onnxtrain.types import BOOL, FLOATS, OWN, DataType

FLOAT16 = frozenset({DataType.FLOAT16})
ENCODE = "X: T -> Y: T1"
DECODE = "X: T1 -> Y: T"

BYTES = typed(fixed(DataType.UINT8), shape_of(0))
RESTORED = typed(from_attribute("to"), shape_of(0))


def _rank(facts: Facts, output: int) -> Shape:
    shape = facts.shape(0)
    return (None if shape is None else len(shape),)


OPS = (
    op(
        "InMemoryOrder",
        "x: T -> flat: T, axes: I",
        domain=OWN,
        T=ANY,
        I=INT64,
        infer=(typed(of(0), packed(0, per_word=1)), typed(fixed(DataType.INT64), _rank)),
    ),
    op(
        "FromMemoryOrder",
        "flat: T, axes: I, shape: I -> x: T",
        domain=OWN,
        T=ANY,
        I=INT64,
        infer=typed(of(0), given_by(2)),
    ),
    op("Passes", "x: T -> y: B", domain=OWN, T=FLOATS, B=BOOL, infer=flag(shape_of(0))),
    op("GistBinarizeEncoder", ENCODE, T=FLOATS, T1=BOOL, infer=flag(shape_of(0))),
    op("GistBinarizeDecoder", DECODE, T=FLOATS, T1=BOOL, to=required("int"), infer=RESTORED),
    op(
        "GistPack1Encoder",
        ENCODE,
        T=FLOATS | BOOL,
        T1=UINT8,
        infer=typed(fixed(DataType.UINT8), packed(0, per_word=8)),
    ),
    op(
        "GistPack1Decoder",
        DECODE,
        T=FLOATS | BOOL,
        T1=UINT8,
        to=required("int"),
        # the bits do not say which shape they had: the graph declares it
        infer=typed(from_attribute("to"), any_shape),
    ),
    op("GistPack8Encoder", ENCODE, T=FLOATS, T1=UINT8, infer=BYTES),
    op("GistPack8Decoder", DECODE, T=FLOATS, T1=UINT8, to=required("int"), infer=RESTORED),
    op(
        "GistPack16Encoder",
        ENCODE,
        T=WIDE,
        T1=FLOAT16,
        infer=typed(fixed(DataType.FLOAT16), shape_of(0)),
    ),
    op("GistPack16Decoder", DECODE, T=WIDE, T1=FLOAT16, to=required("int"), infer=RESTORED),
    op("GistPackMsfp15Encoder", ENCODE, T=FLOATS, T1=UINT8, infer=BYTES),
    op("GistPackMsfp15Decoder", DECODE, T=FLOATS, T1=UINT8, to=required("int"), infer=RESTORED),
)
