"""Nodes that call operators of torch and Triton functions by name."""

from typing import Any

import onnx.parser
import pytest
import torch

from onnxtrain.kernels.interop import aten, registry, triton_op
from onnxtrain.ort_triton import register_triton_kernel
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.types import CUDA

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("operator", "overload", "message"),
    [
        ("aten::nothing", "", "torch has no operator 'aten::nothing'"),
        ("relu", "Tensor", "operator 'relu' has no overload 'Tensor'"),
        ("relu_", "", "aten.relu_.default writes to its arguments"),
    ],
)
def test_operators_that_cannot_be_called(operator: str, overload: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        aten.find_overload(operator, overload)


def run_aten(operator: str, *inputs: Any, overload: str = "", outputs: int = 1) -> list[Any]:
    wanted = (True,) * outputs
    options = {"operator": operator, "overload_name": overload, "wanted": wanted, "device": CPU}
    return list(aten.aten(*inputs, **options))


def test_arguments_of_an_operator() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert run_aten("transpose", x, torch.tensor(0), torch.tensor([1]), overload="int")[
        0
    ].is_contiguous()
    assert run_aten("size", x, torch.tensor(1), overload="int")[0].item() == 3
    [first, none] = run_aten(
        "native_layer_norm_backward",
        torch.ones(2, 3),
        x,
        torch.tensor([3]),
        torch.zeros(2, 1),
        torch.ones(2, 1),
        None,
        None,
        torch.tensor([True, False, False]),
        outputs=2,
    )
    assert first.shape == (2, 3) and none is None
    with pytest.raises(ValueError, match="takes 1 arguments, the node has 2"):
        run_aten("relu", x, x)
    with pytest.raises(ValueError, match="needs a value for 'dim0'"):
        run_aten("transpose", x, overload="int")
    with pytest.raises(ValueError, match="gives 1 values, the node has 2"):
        run_aten("relu", x, outputs=2)
    with pytest.raises(ValueError, match=r"takes a List\[Tensor\] as 'tensors'"):
        run_aten("cat", x)


def scaled(x: torch.Tensor, y: torch.Tensor | None = None, *, factor: float = 1.0) -> Any:
    return x * factor if y is None else (x * factor, y)


def test_a_triton_function_gets_tensors_and_numbers() -> None:
    assert register_triton_kernel(scaled) is scaled
    x = torch.ones(2)
    assert triton_op.triton_op(x, None, func_name="scaled", factor=2.0, wanted=(True,))[
        0
    ].tolist() == [2, 2]
    found = triton_op.triton_op(
        x, x, func_name="scaled", _hidden=1, sizes=(1, 2), wanted=(True, True)
    )
    assert [value.tolist() for value in found] == [[1, 1], [1, 1]]
    with pytest.raises(ValueError, match="scaled gave 1 outputs, the node has 2"):
        triton_op.triton_op(x, func_name="scaled", wanted=(True, True))
    with pytest.raises(ValueError, match="there is no Triton function 'other'"):
        triton_op.triton_op(x, func_name="other", wanted=(True,))
    with pytest.raises(ValueError, match="neither func_name nor onnx_string"):
        triton_op.triton_op(x, onnx_key=3, onnx_string="...", wanted=(True,))


MODEL = """
<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
main (float[3] x) => (float[3] y) {
  y = com.microsoft.TritonOp<func_name = "scaled", factor = 2.0>(x)
}
"""


def test_triton_functions_need_a_gpu() -> None:
    with pytest.raises(NotImplementedError, match=r"no CPU kernel for com.microsoft::TritonOp"):
        InferenceSession(onnx.parser.parse_model(MODEL))


@pytest.mark.gpu
def test_a_session_calls_a_triton_function() -> None:
    registry.register_triton_function("scaled", scaled)
    session = InferenceSession(onnx.parser.parse_model(MODEL), providers=[CUDA.value])
    assert session.run_torch(None, {"x": torch.ones(3)})[0].tolist() == [2, 2, 2]
