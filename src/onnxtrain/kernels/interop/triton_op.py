"""TritonOp: a registered Triton function, on a GPU.

A TritonOp that carries a graph instead has been replaced by its nodes when the model was prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from onnxtrain.kernels.interop.registry import triton_function
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import CUDA, MS


@kernel("TritonOp", domain=MS, on=CUDA, view="inputs", outputs=0, needs=["wanted"])
def triton_op(
    *inputs: Tensor | None,
    func_name: str = "",
    onnx_key: int = 0,
    onnx_string: str = "",
    wanted: tuple[bool, ...],
    **options: Any,
) -> Sequence[Tensor]:
    """outputs = function(*inputs, **options), with the node's other numbers and texts."""
    if not func_name:
        raise ValueError(
            f"neither func_name nor onnx_string says what to run (onnx_key {onnx_key}); "
            "name a registered function in func_name"
        )
    chosen = {
        name: value
        for name, value in options.items()
        if not name.startswith("_") and isinstance(value, (int, float, str))
    }
    result = triton_function(func_name)(*inputs, **chosen)
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(outputs) != len(wanted):
        raise ValueError(f"{func_name} gave {len(outputs)} outputs, the node has {len(wanted)}")
    return outputs
