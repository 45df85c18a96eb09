"""Which training kernels onnxruntime-training 1.19.2 registers for CUDA: 89 operators, 212 kernels.

Most of its kernels are registered once for each combination of element types. A combination is
written as a word with a letter for each type name, in the order of the names beside it. Others are
registered once, for all types of a set.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

from onnxtrain.kernels.registry import KernelRegistry
from onnxtrain.types import (
    FIXED,
    FLOATS,
    INTS,
    MS,
    ONNX,
    DataType,
    Provider,
    dtype_name,
    op_name,
)

Types = Mapping[str, frozenset[DataType]]

LETTERS = {
    "h": DataType.FLOAT16,
    "b": DataType.BFLOAT16,
    "f": DataType.FLOAT,
    "d": DataType.DOUBLE,
    "i": DataType.INT32,
    "l": DataType.INT64,
    "t": DataType.BOOL,
}
FLOAT = frozenset({DataType.FLOAT})
LONG = frozenset({DataType.INT64})
THREE = FLOATS - {DataType.BFLOAT16}

_BY_WORD = (
    ("ReduceSumTraining", "T", "f d i h"),
    ("ConvGrad ConvTransposeGrad DivGrad ResizeGrad IsFinite", "T", "f d h"),
    ("GeluGrad FastGeluGrad ReluGrad SigmoidGrad TanhGrad LeakyReluGrad", "T", "f d h"),
    ("IsAllFinite", "V", "f d h"),
    ("QuickGeluGrad Scale", "T", "f d h b"),
    ("All", "T", "t"),
    ("SoftmaxCrossEntropy SoftmaxCrossEntropyGrad FakeQuant FakeQuantGrad", "T", "f"),
    ("ZeroGradient", "T1", "f h"),
    ("MixedPrecisionScale", "SrcT", "h f b"),
    ("GatherNDGrad", "Tind", "l"),
    ("GistBinarizeEncoder GistBinarizeDecoder", "T", "f h d"),
    ("GistPack1Encoder GistPack1Decoder", "T", "t f"),
    ("GistPack8Encoder GistPack8Decoder", "T", "f h"),
    ("GistPack16Encoder GistPack16Decoder", "T", "f"),
    ("GistPackMsfp15Encoder GistPackMsfp15Decoder", "T", "f"),
    ("ReduceAllL2", "TIn TOut", "ff hf fh hh bf fb bb"),
    ("InPlaceAccumulator", "T T_GRAD", "ff fh hh hf fb bb bf"),
    ("InPlaceAccumulatorV2", "T T_GRAD", "ff fh"),
    ("SoftmaxCrossEntropyLossGrad", "T Tind", "fl hl bl"),
    ("SoftmaxCrossEntropyLossInternal", "T Tind TOut", "hlf flf hlh blb"),
    ("SoftmaxCrossEntropyLossInternalGrad", "T Tind TOut", "flh flf hlh blb"),
    ("BatchNormInternal BatchNormalizationGrad", "T T1 T2", "fff ddd hhh hhf hff"),
    ("LayerNormalizationGrad", "T U V", "fff ddd hfh ffh hff bfb"),
    ("SimplifiedLayerNormalizationGrad", "T U V", "fff ddd hfh ffh hff bfb"),
    ("InvertibleLayerNormalizationGrad", "T U V", "fff ddd hfh ffh hff"),
    (
        "AdamOptimizer",
        "T1 T2 T3 T4 T_GRAD T_GRAD_NORM T_MIXED_PRECISION_FP",
        "flffffh hlfhffh flfhffh flffhhh flffhfh hlfhhhh hlfhhfh flfhhhh flfhhfh "
        "flffffb blfbffb flfbffb flffbbb flffbfb blfbbbb blfbbfb flfbbbb flfbbfb",
    ),
    (
        "LambOptimizer",
        "T1 T2 T_GROUP T_GROUP T_GRAD_NORM T_GROUP",
        "fffffh ffhfhh ffhffh dddddh hfhhhh hfhhfh hfhfhh hfhffh "
        "fffffb ffbfbb ffbffb dddddb bfbbbb bfbbfb bfbfbb bfbffb",
    ),
)
"""Operators, type names, and combinations of types. A name that comes twice stands for a variadic
input of several types."""

_BY_SET: tuple[tuple[str, Types], ...] = (
    ("View LogSoftmaxGrad LogSoftmaxGrad_13 SoftmaxGrad SoftmaxGrad_13", {"T": FLOATS}),
    ("BiasGeluGrad_dX BiasFastGeluGrad_dX BatchScale ScaledSum", {"T": FLOATS}),
    ("SplitTraining ConcatTraining", {"T": FIXED}),
    ("SliceGrad", {"I": LONG, "T": FIXED, "Tind": INTS}),
    ("DropoutGrad BitmaskDropoutGrad", {"T": FLOATS, "T1": FLOATS}),
    ("BiasSoftmaxDropout SoftmaxDropoutGrad", {"T": THREE, "T1": THREE}),
    ("GatherGrad GatherElementsGrad", {"I": LONG, "T": FLOATS, "Tind": INTS}),
    ("PadAndUnflatten", {"T": FLOATS, "T_INDEX": LONG, "T_INT": LONG}),
    ("FlattenAndUnpad", {"T": FLOATS | INTS, "T_INT": LONG}),
    ("SGDOptimizer", {"L": FLOAT, "T": FLOAT}),
    ("AdamWOptimizer", {"S_WEIGHT": FLOAT, "S_GRAD": FLOAT, "S_MOMENT": FLOAT}),
    ("SGDOptimizerV2", {"S_WEIGHT": FLOAT, "S_GRAD": FLOAT}),
    ("InplaceClipGradNorm", {"S_GRAD": FLOAT}),
    ("AdasumAllReduce NcclAllReduce NcclAllGather NcclReduceScatter", {"T": THREE}),
    ("MegatronF MegatronG", {"T": THREE}),
    ("Send Recv", {"V": FIXED}),
    ("Group PassThrough RecordEvent WaitEvent TritonOp PythonOp PythonOpGrad", {"T": FIXED}),
    ("YieldOp", {"T": FIXED}),
)
"""Operators with one kernel for each combination of types of these sets."""

_IN_ONNX_DOMAIN = (
    ("SparseSoftmaxCrossEntropy", 9, None, "fl"),
    ("SparseSoftmaxCrossEntropyGrad", 9, None, "fl"),
    ("SoftmaxCrossEntropyLoss", 12, 12, "hl fl"),
    ("SoftmaxCrossEntropyLoss", 13, None, "hl fl bl"),
)
"""Operators, first and last version, and combinations of ``T Tind``."""


@dataclasses.dataclass(frozen=True)
class Registration:
    """A kernel of the reference: an operator, the versions and the element types it is for."""

    domain: str
    op: str
    since: int
    until: int | None
    types: Types

    def combinations(self) -> Iterator[dict[str, DataType]]:
        """Every way to bind the type names."""
        for picked in itertools.product(*(sorted(types) for types in self.types.values())):
            yield dict(zip(self.types, picked, strict=True))

    def versions(self) -> tuple[int, ...]:
        """Opset versions to try: the first, and the last if there is one."""
        return (self.since,) if self.until in (None, self.since) else (self.since, self.until)


def registrations() -> list[Registration]:
    """All kernels of the reference."""
    return [
        *(
            Registration(MS, op, 1, None, types_of(names, word))
            for ops, names, words in _BY_WORD
            for op, word in itertools.product(ops.split(), words.split())
        ),
        *(Registration(MS, op, 1, None, types) for ops, types in _BY_SET for op in ops.split()),
        *(
            Registration(ONNX, op, since, until, types_of("T Tind", word))
            for op, since, until, words in _IN_ONNX_DOMAIN
            for word in words.split()
        ),
    ]


def types_of(names: str, word: str) -> Types:
    """Types by name, of a word with a letter for each name."""
    found: dict[str, frozenset[DataType]] = {}
    for name, letter in zip(names.split(), word, strict=True):
        found[name] = found.get(name, frozenset()) | {LETTERS[letter]}
    return found


def missing(registry: KernelRegistry, provider: Provider) -> list[str]:
    """A line for each combination of the reference that no kernel of a registry takes."""
    return [
        f"{op_name(item.domain, item.op)} {version} "
        + " ".join(f"{name}={dtype_name(dtype)}" for name, dtype in types.items())
        for item in registrations()
        for version in item.versions()
        for types in item.combinations()
        if registry.find(item.domain, item.op, version, types, provider) is None
    ]
