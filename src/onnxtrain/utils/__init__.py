"""Small things around torch, the counterpart of ``onnxruntime.training.utils``."""

from onnxtrain.utils.nested import (
    ORTModelInputOutputSchemaType,
    ORTModelInputOutputType,
    PrimitiveType,
    extract_data_and_schema,
    unflatten_data_using_schema,
)
from onnxtrain.utils.profiling import (
    log_memory_usage,
    nvtx_function_decorator,
    torch_nvtx_range_pop,
    torch_nvtx_range_push,
)
from onnxtrain.utils.table import PTable
from onnxtrain.utils.torch_types import (
    onnx_dtype_to_pytorch_dtype,
    pytorch_scalar_type_to_pytorch_dtype,
    pytorch_type_to_onnx_dtype,
)

__all__ = [
    "ORTModelInputOutputSchemaType",
    "ORTModelInputOutputType",
    "PTable",
    "PrimitiveType",
    "extract_data_and_schema",
    "log_memory_usage",
    "nvtx_function_decorator",
    "onnx_dtype_to_pytorch_dtype",
    "pytorch_scalar_type_to_pytorch_dtype",
    "pytorch_type_to_onnx_dtype",
    "torch_nvtx_range_pop",
    "torch_nvtx_range_push",
    "unflatten_data_using_schema",
]
