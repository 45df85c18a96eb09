"""Sizes of pools that round up."""

import numpy as np
import pytest

from gradients.emit import agrees_with_differences
from graph.text import model, values
from onnxtrain.graph.prepare import prepare

POOL = "kernel_shape=[2], strides=[2], pads=[1, 1], ceil_mode=1"


@pytest.mark.parametrize("op", ["AveragePool", "LpPool", "MaxPool"])
@pytest.mark.parametrize("opset", [18, 22])
def test_a_window_beyond_the_data_is_not_counted(op: str, opset: int) -> None:
    text = f"(double[N,1,5] x) => (double[N,A] y) {{ p = {op}<{POOL}>(x) y = Flatten(p) }}"
    found = values(prepare(model(text, opset)))
    assert [found[name].shape[-1] for name in ("p", "y")] == [3, 3]


@pytest.mark.parametrize("op", ["AveragePool", "LpPool", "MaxPool"])
@pytest.mark.parametrize("opset", [18, 22])
def test_means_behind_it_divide_by_what_is_there(op: str, opset: int) -> None:
    text = (
        f"(double[1,1,5] x) => (double y) {{ p = {op}<{POOL}>(x) y = ReduceMean<keepdims=0>(p) }}"
    )
    x = np.arange(1.0, 6).reshape(1, 1, 5)
    agrees_with_differences(text, opset=opset, x=x, d_y=np.float64(1))


def test_bodies_that_read_it_know_no_wrong_size() -> None:
    text = f"""(double[1,1,5] x, bool c) => (double[1,1,A] y) {{ p = MaxPool<{POOL}>(x)
      y = If(c) <then_branch = t () => (double[1,1,B] a) {{ a = Neg(p) }},
                 else_branch = e () => (double[1,1,D] b) {{ b = Exp(p) }}> }}"""
    assert values(prepare(model(text, 18)))["y"].shape[-1] not in (2, 4)
    x, d_y = np.arange(1.0, 6).reshape(1, 1, 5), np.ones((1, 1, 3))
    agrees_with_differences(text, "x", opset=18, x=x, c=np.array(True), d_y=d_y)
