"""Generated kernels beside the operators that they stand for."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from onnxtrain.kernels.math.chain import elementwise, parsed

pytest.importorskip("triton", reason="Triton is not installed")
# the interpreter rounds bfloat16 wrongly
PLACES = [("cpu", "float32"), ("cpu", "float16"), *(("cuda", k) for k in ("float32", "bfloat16"))]
on_devices = pytest.mark.parametrize(
    ("device", "dtype"),
    [pytest.param(*pair, marks=[pytest.mark.gpu] if pair[0] == "cuda" else []) for pair in PLACES],
)
CHAINS = [
    "Add 0 1; Relu 3; Mul 4 2",
    "Sum 0 1 2; ReluGrad 3 0",
    "Abs 0; Sqrt 3; Div 1 4; Sub 5 2",
    "Sigmoid 0; SigmoidGrad 1 3; TanhGrad 4 3; Mul 5 2",
    "QuickGelu:1.0 0; QuickGeluGrad:1.5 1 3; Neg 4; Add 5 2",
    "Neg 0; Exp 3; Reciprocal 4; Mul 5 1; Add 6 2",
]
FORMS = ["full", "last", "single", "channels_last"]


def module() -> Any:
    return importlib.import_module("onnxtrain.kernels.fast.generated")


def inputs(form: str, device: str, dtype: str) -> list[Tensor]:
    shape = (2, 3, 10, 37)
    shapes = {"last": [shape, shape, (10, 37)], "single": [shape, shape, (1, 1)]}
    found = [torch.randn(s) for s in shapes.get(form, [shape] * 3)]
    if form == "channels_last":
        found = [x.contiguous(memory_format=torch.channels_last) for x in found]
    return [x.to(device, getattr(torch, dtype)) for x in found]


@on_devices
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("steps", CHAINS)
def test_chains(device: str, dtype: str, form: str, steps: str) -> None:
    given = inputs(form, device, dtype)
    ours = module().run(parsed(steps), given)
    exact = elementwise(*(x.cpu().double() for x in given), steps=steps)
    rounded = elementwise(*(x.cpu() for x in given), steps=steps)
    assert ours.dtype == given[0].dtype and ours.stride() == given[0].stride()
    scale = exact.norm()
    error, allowed = ((v.cpu().double() - exact).norm() / scale for v in (ours, rounded))
    assert error <= 2 * allowed + 2.0**-22


def test_layouts_that_it_leaves_to_torch() -> None:
    x = torch.randn(4, 6)
    generated = module()
    assert not generated.takes([x, x.t().contiguous().t()])
    assert not generated.takes([x, torch.randn(4, 1)])
    assert not generated.takes([x, x.double()])
    assert not generated.takes([torch.randn(4, 1), torch.randn(1, 6)])


def test_not_a_number_stays_one() -> None:
    x = torch.tensor([float("nan"), -1.0, 2.0])
    steps = "Neg 0; Neg 1; Relu 2"
    found = module().run(parsed(steps), [x])
    assert found.isnan().tolist() == [True, False, False] and found[1:].tolist() == [0.0, 2.0]


def test_unknown_operators_are_refused() -> None:
    with pytest.raises(ValueError, match="'Loop' is no operator of a chain"):
        elementwise(torch.ones(3), steps="Loop 0")
