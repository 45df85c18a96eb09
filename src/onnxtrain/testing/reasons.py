"""Operators that run but have neither a gradient rule nor a declared zero, each with its reason."""

from __future__ import annotations

from onnxtrain.types import MS, op_name

_PREVIEW = "ai.onnx.preview.training"

_BY_REASON: tuple[tuple[str, str, str], ...] = (
    (
        "updates weights after the backward pass",
        MS,
        "AdamOptimizer AdamWOptimizer LambOptimizer SGDOptimizer SGDOptimizerV2",
    ),
    ("updates weights after the backward pass", _PREVIEW, "Adagrad Adam Momentum"),
    (
        "works on gradients after the backward pass",
        MS,
        "InPlaceAccumulator InPlaceAccumulatorV2 InplaceClipGradNorm MixedPrecisionScale "
        "ReduceAllL2 ZeroGradient",
    ),
    (
        "exchanges gradients or weights between processes after the backward pass",
        MS,
        "AdasumAllReduce NcclAllGather NcclAllReduce NcclReduceScatter Recv Send",
    ),
    (
        "compresses what waits for the backward pass",
        MS,
        "GistBinarizeDecoder GistBinarizeEncoder GistPack16Decoder GistPack16Encoder "
        "GistPack1Decoder GistPack1Encoder GistPack8Decoder GistPack8Encoder "
        "GistPackMsfp15Decoder GistPackMsfp15Encoder",
    ),
    (
        "orders steps or hands tensors over; put into graphs that are differentiated already",
        MS,
        "Group PassThrough RecordEvent View WaitEvent YieldOp",
    ),
    ("writes a record for people", MS, "SummaryHistogram SummaryMerge SummaryScalar SummaryText"),
    (
        "a gradient operator that no rule emits, or emits where a second gradient is not defined",
        MS,
        "DivGrad InvertibleLayerNormalizationGrad PythonOpGrad",
    ),
    ("code of the user's own; its gradient is declared with @gradient", MS, "TritonOp"),
    (
        "any operator of torch; the gradient of one is declared with register_gradient",
        "org.pytorch.aten",
        "ATen",
    ),
)
REASONS: dict[str, str] = {
    op_name(domain, op): reason for reason, domain, ops in _BY_REASON for op in ops.split()
}
"""Reason by full name of the operator."""
