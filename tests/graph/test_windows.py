"""Sizes of convolutions and pools whose window does not fit."""

import numpy as np
import pytest

from gradients.emit import agrees_with_differences
from graph.text import model, values
from onnxtrain.graph.prepare import prepare

WINDOW = "kernel_shape=[2, 1], strides=[3, 2]"
NODES = {
    **{op: f"{op}<{WINDOW}>(x)" for op in ("AveragePool", "LpPool", "MaxPool")},
    "valid": f'AveragePool<{WINDOW}, auto_pad="VALID">(x)',
    "up": "AveragePool<kernel_shape=[4, 1], strides=[3, 2], ceil_mode=1>(x)",
    "padded": "AveragePool<kernel_shape=[4, 1], strides=[3, 2], pads=[1, 0, 1, 0]>(x)",
    "dilated": "Conv<dilations=[3, 1], strides=[4, 2]>(x, w)",
}


@pytest.mark.parametrize("name", NODES)
def test_less_than_a_window_is_none(name: str) -> None:
    text = f"(double[N,1,1,5] x, double[1,1,2,1] w) => (double[N,1,A,B] y) {{ y = {NODES[name]} }}"
    assert list(values(prepare(model(text, 19)))["y"].shape[1:]) == [1, 0, 3]


@pytest.mark.parametrize("name", NODES)
def test_what_has_no_results_has_a_gradient_of_zero(name: str) -> None:
    text = f"""(double[2,1,1,5] x, double[1,1,2,1] w) => (double[2,1,A,B] y) {{
      y = {NODES[name]} }}"""
    x, w = np.arange(10.0).reshape(2, 1, 1, 5), np.ones((1, 1, 2, 1))
    agrees_with_differences(text, "x", opset=19, x=x, w=w, d_y=np.ones((2, 1, 0, 3)))


def test_windows_that_fit_are_counted() -> None:
    text = """(double[N,1,3,5] x) => (double[N,1,A,B] y) {
      y = MaxPool<kernel_shape=[3, 5], strides=[2, 2]>(x) }"""
    assert list(values(prepare(model(text, 19)))["y"].shape[1:]) == [1, 1, 1]
