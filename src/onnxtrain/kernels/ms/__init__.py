"""Forward operators of com.microsoft, which onnxruntime's optimizer puts into models."""

from onnxtrain.kernels.ms import (
    experts,
    fused,
    gated,
    masked_pool,
    norm,
    qlinear,
    qproducts,
    recurrent,
    tensor,
    text,
    warp,
    weights,
    words,
)

__all__ = [
    "experts",
    "fused",
    "gated",
    "masked_pool",
    "norm",
    "qlinear",
    "qproducts",
    "recurrent",
    "tensor",
    "text",
    "warp",
    "weights",
    "words",
]
