"""Which operators give the same results when they are computed again, and which soon do."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from onnxtrain.graph.walk import bodies_of
from onnxtrain.types import MS, ONNX, OWN

_ELEMENTS = {
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "Cast", "CastLike",
    "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu",
    "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN",
    "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg",
    "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid",
    "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh",
    "ThresholdedRelu", "Where", "Xor",
}  # fmt: skip
_MOVED = {
    "Concat", "ConstantOfShape", "DepthToSpace", "Expand", "EyeLike", "Flatten", "Gather",
    "GatherElements", "GatherND", "OneHot", "Pad", "Range", "Reshape", "Shape", "Size", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze",
}  # fmt: skip
_ROWS = {
    "ArgMax", "ArgMin", "CumSum", "GroupNormalization", "InstanceNormalization",
    "LayerNormalization", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization",
    "RMSNormalization", "ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "RotaryEmbedding",
    "SimplifiedLayerNormalization", "Softmax",
}  # fmt: skip
_CHEAP = {
    ONNX: _ELEMENTS | _MOVED | _ROWS,
    MS: {
        "BiasAdd", "BiasGelu", "BiasSoftmax", "BiasSplitGelu", "FastGelu", "Gelu", "GroupNorm",
        "QuickGelu", "RotaryEmbedding", "SimplifiedLayerNormalization", "SkipGroupNorm",
        "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
    },
    OWN: {"Elementwise", "Gated", "GatedHalves", "GroupNormalized", "Rotate"},
}  # fmt: skip
_PRODUCTS = {
    ONNX: {
        "Attention", "AveragePool", "Conv", "ConvTranspose", "Einsum", "Gemm", "GlobalAveragePool",
        "GRU", "GlobalMaxPool", "LRN", "LSTM", "MatMul", "MaxPool", "RNN", "Resize", "TopK",
    },
    MS: {
        "FusedConv", "FusedGemm", "FusedMatMul", "GRUTraining", "GemmFastGelu", "LSTMTraining",
        "MultiHeadAttention",
    },
    OWN: {"LSTMLayer", "MaxPoolInPlanes"},
}  # fmt: skip
"""What takes time, and is only computed again with the layer that it is in."""


_NORMALIZED = {(MS, "BatchNormInternal"), (OWN, "BatchNormRelu"), (OWN, "BatchNormAddRelu")}
"""Of the statistics of a batch, which are the fourth and fifth of what they give."""


class Twin(NamedTuple):
    """What computes a value again: an operator, its inputs, and attributes of the first one."""

    domain: str
    op_type: str
    inputs: list[ir.Value | None]
    attributes: list[ir.Attr]


def is_cheap(value: ir.Value) -> bool:
    """Whether computing a value takes no longer than reading and writing memory does."""
    node = value.producer()
    if node is None or bodies_of(node):
        return False
    return node.op_type in _CHEAP.get(node.domain, ()) or _stand_in(value) is not None


def is_repeatable(value: ir.Value) -> bool:
    """Whether a value is the same once more: nothing is drawn for it, and nothing is changed."""
    node = value.producer()
    listed = node is not None and node.op_type in _PRODUCTS.get(node.domain, ())
    return listed or is_cheap(value)


def sources(value: ir.Value) -> list[ir.Value]:
    """What a value is computed from when it is computed again."""
    return list(dict.fromkeys(given for given in twin_of(value).inputs if given is not None))


def twin_of(value: ir.Value) -> Twin:
    """What computes a value again; usually the same operator."""
    node = value.producer()
    assert node is not None, "inputs are not computed"
    same = Twin(node.domain, node.op_type, [*node.inputs], [*node.attributes.values()])
    return _stand_in(value) or same


def _stand_in(value: ir.Value) -> Twin | None:
    """What does without drawing a mask again, or without moving running statistics again.

    The gradient of a dropout applies a mask. A batch normalization reads running statistics only to
    move them: it may have those of the batch in their place.
    """
    node = value.producer()
    if node is None or value is not node.outputs[0]:
        return None
    kind, others = (node.domain, node.op_type), node.outputs[1:]
    masked = len(others) == 1 and bool(others[0].name)
    if kind == (ONNX, "Dropout") and len(node.inputs) == 3 and masked:
        data, *settings = node.inputs
        return Twin(MS, "DropoutGrad", [data, *others, *settings], [])
    if kind in _NORMALIZED and len(others) == 4 and all(v.name for v in others[2:]):
        inputs = [*node.inputs[:3], *others[2:], *node.inputs[5:]]
        return Twin(*kind, inputs, [*node.attributes.values()])
    return None
