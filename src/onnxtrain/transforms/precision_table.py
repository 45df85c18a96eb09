"""Which operators compute in 16 bits in mixed precision, and which of their inputs stay float32."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.types import MS, ONNX, OWN

COMPUTE = frozenset(
    {
        *("Attention", "Conv", "ConvTranspose", "Einsum", "FlashAttention", "FusedConv"),
        *("FusedGemm", "FusedMatMul", "GRU", "Gemm", "GroupQueryAttention", "LSTM", "MatMul"),
        *("MultiHeadAttention", "RNN"),
    }
)
"""Products, where the time goes: narrow whenever weights or data are in them."""
MOVERS = frozenset(
    {
        *("Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements"),
        *("GatherND", "Identity", "Pad", "Reshape", "ReverseSequence", "Slice", "SpaceToDepth"),
        *("Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"),
    }
)
"""Operators that only move numbers, for which rounding before or after is the same."""
FOLLOWERS = MOVERS | {
    *("Abs", "Add", "AveragePool", "BatchNormInternal", "BatchNormalization", "BiasAdd"),
    *("BiasDropout", "BiasGelu", "BiasSoftmax", "BitmaskBiasDropout", "BitmaskDropout", "Celu"),
    *("Clip", "Div", "Dropout", "Elu", "Erf", "FastGelu", "Gated", "GatedHalves", "Gelu"),
    *(
        "GlobalAveragePool",
        "GlobalMaxPool",
        "GroupNormalization",
        "GroupNormalized",
        "HardSigmoid",
        "HardSwish",
    ),
    *("InstanceNormalization",),
    *("LayerNormalization", "LeakyRelu", "Max", "MaxPool", "Mean", "Min", "Mul", "Neg", "PRelu"),
    *("QuickGelu", "RMSNormalization", "ReduceMax", "ReduceMean", "ReduceMin", "Relu", "Resize"),
    *("RotaryEmbedding", "Rotate", "ScatterElements", "ScatterND", "Selu", "Sigmoid", "Sign"),
    *("SimplifiedLayerNormalization", "SkipLayerNormalization"),
    *("SkipSimplifiedLayerNormalization", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tanh"),
    *("ThresholdedRelu", "Upsample", "Where"),
}
"""Operators that compute in the type of what they are given; statistics of norms are float32."""
FOLLOWERS_IN_ATTENTION = frozenset({"Softmax"})
"""Operators that are narrow if products take their results: float32 is for probabilities of losses.

All others stay in float32: exponentials, logarithms, powers and sums overflow in float16 and lose
digits in bfloat16 that a loss needs.
"""
READERS = frozenset({"ArgMax", "ArgMin", "IsInf", "IsNaN", "NonZero", "Shape", "Size"})
"""Operators whose results are the same for narrow and wide inputs, or that only look at shapes."""
KEPT_INPUTS = {
    "BatchNormInternal": frozenset({1, 2, 3, 4}),
    "BatchNormalization": frozenset({1, 2, 3, 4}),
    "BiasDropout": frozenset({3}),
    "BitmaskBiasDropout": frozenset({3}),
    "BitmaskDropout": frozenset({1}),
    "Dropout": frozenset({1}),
    "Resize": frozenset({1, 2}),
    "Rotate": frozenset({1, 2}),
    "Upsample": frozenset({1}),
}
"""Inputs that stay float32 where an operator is narrow: statistics, ratios, sizes, angles."""
SPLIT_TYPES_SINCE = {"BatchNormalization": 15}
"""The first opset whose schema lets those inputs have a type of their own."""
CROSS_ENTROPIES = frozenset({"SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossInternal"})
"""Losses that take narrow scores and give a float32 loss."""
_DOMAINS = frozenset({ONNX, MS, OWN})
_PASSED = MOVERS | {"BitmaskDropout", "Cast", "Dropout", "Where", "Mul"}


def is_in(node: ir.Node, operators: frozenset[str]) -> bool:
    """Whether a node is one of these operators."""
    return node.domain in _DOMAINS and node.op_type in operators


def weights_values(node: ir.Node) -> bool:
    """Whether the results of a node are factors of a matrix product, as attention's softmax are."""
    open_, seen = list(node.outputs), set()
    while open_:
        value = open_.pop()
        if value in seen:
            continue
        seen.add(value)
        for user, _ in value.uses():
            if is_in(user, COMPUTE):
                return True
            if is_in(user, _PASSED):
                open_ += user.outputs
    return False


def tail(graph: ir.Graph) -> set[ir.Node]:
    """What stands between the last products and a first output that is a loss: a scalar."""
    loss = graph.outputs[0] if graph.outputs else None
    if loss is None or loss.shape is None or any(dim != 1 for dim in loss.shape):
        return set()
    found: set[ir.Node] = set()
    open_ = [loss.producer()]
    while open_:
        node = open_.pop()
        if node is None or node in found or is_in(node, COMPUTE):
            continue
        found.add(node)
        open_ += [value.producer() for value in node.inputs if value is not None]
    return found
