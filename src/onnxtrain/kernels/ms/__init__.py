"""Forward operators of com.microsoft, which onnxruntime's optimizer puts into models."""

from onnxtrain.kernels.ms import (
    experts,
    fused,
    gated,
    norm,
    qlinear,
    qproducts,
    recurrent,
    tensor,
    text,
    weights,
)

__all__ = [
    "experts",
    "fused",
    "gated",
    "norm",
    "qlinear",
    "qproducts",
    "recurrent",
    "tensor",
    "text",
    "weights",
]
