"""Where onnxruntime-training keeps marks for profilers; the same as in ``onnxtrain.utils``."""

from onnxtrain.utils.profiling import (
    log_memory_usage,
    nvtx_function_decorator,
    torch_nvtx_range_pop,
    torch_nvtx_range_push,
)

__all__ = [
    "log_memory_usage",
    "nvtx_function_decorator",
    "torch_nvtx_range_pop",
    "torch_nvtx_range_push",
]
