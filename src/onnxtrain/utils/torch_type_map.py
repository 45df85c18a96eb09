"""Where onnxruntime-training translates element types; the same as in ``onnxtrain.utils``."""

from onnxtrain.utils.torch_types import (
    onnx_dtype_to_pytorch_dtype,
    pytorch_scalar_type_to_pytorch_dtype,
    pytorch_type_to_onnx_dtype,
)

__all__ = [
    "onnx_dtype_to_pytorch_dtype",
    "pytorch_scalar_type_to_pytorch_dtype",
    "pytorch_type_to_onnx_dtype",
]
