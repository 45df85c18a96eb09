"""Operators that run but have neither a gradient rule nor a declared zero, each with its reason."""

from __future__ import annotations

from onnxtrain.types import MS, OWN, TRAINING, op_name

_BY_REASON: tuple[tuple[str, str, str], ...] = (
    (
        "updates weights after the backward pass",
        MS,
        "AdamOptimizer AdamWOptimizer LambOptimizer SGDOptimizer SGDOptimizerV2",
    ),
    (
        "works on gradients after the backward pass",
        MS,
        "InPlaceAccumulator InPlaceAccumulatorV2 InplaceClipGradNorm ZeroGradient",
    ),
    ("works on gradients after the backward pass", OWN, "ClipFactor HandOver"),
    (
        "joins operators when a step is planned, which is after differentiation",
        OWN,
        "BatchNormAddRelu Elementwise LSTMLayer LSTMLayerGrad MaxPoolInPlanes MaxPoolInPlanesGrad "
        "StackLoop",
    ),
    (
        "exchanges gradients or weights between processes after the backward pass",
        MS,
        "AdasumAllReduce NcclAllGather NcclReduceScatter",
    ),
    (
        "compresses what waits for the backward pass",
        MS,
        "GistBinarizeDecoder GistBinarizeEncoder GistPack16Decoder GistPack16Encoder "
        "GistPack1Decoder GistPack1Encoder GistPack8Decoder GistPack8Encoder "
        "GistPackMsfp15Decoder GistPackMsfp15Encoder",
    ),
    ("arranges what waits for the backward pass", OWN, "FromMemoryOrder InMemoryOrder Passes"),
    ("hands tensors to the program that runs the step", MS, "YieldOp"),
    (
        "replaced by the nodes that compute it before anything runs or is differentiated",
        TRAINING,
        "Gradient",
    ),
    ("the second gradient is not defined", MS, "PythonOpGrad"),
    ("code of the user's own; its gradient is declared with @gradient", MS, "TritonOp"),
)
REASONS: dict[str, str] = {
    op_name(domain, op): reason for reason, domain, ops in _BY_REASON for op in ops.split()
}
"""Reason by full name of the operator."""
