"""What prepares an input is no weight: means, deviations, and grids of positions."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.deciding import decisions

WIDE = normal(4, 3, seed=1)
PREPARED = "prepares an input"


def reasons(lines: str, arrays: dict[str, np.ndarray], x: str = "float[N,4]") -> dict[str, str]:
    text = f"({x} x) => (float[N,3] y) {{ {lines} y = MatMul(p, w) }}"
    found = decisions(text, {"w": WIDE, **arrays}, opset=18)
    return {name: d.reason for name, d in found.items()}


@pytest.mark.parametrize(
    ("lines", "prepared"),
    [
        ("c = Sub(x, m)  p = Div(c, s)", "ms"),
        ("c = Sub(x, m)  p = Mul(s, c)", "ms"),
        ("p = Sub(x, m)", "m"),
        ("t = Transpose<perm = [1, 0]>(x)  u = Transpose<perm = [1, 0]>(t)  p = Sub(u, m)", "m"),
        ("k = Identity(m)  c = Sub(x, k)  i = Identity(c)  p = Mul(i, s)", "ms"),
        (
            "a, b = Split<axis = 1, num_outputs = 2>(x)  r = Concat<axis = 1>(b, a)  p = Sub(r, m)",
            "m",
        ),
        (
            "j = Constant<value_ints = [3, 2, 1, 0]>()  r = Gather<axis = 1>(x, j)  p = Sub(r, m)",
            "m",
        ),
        ("p = Mul(x, s)", ""),
        ("p = Add(x, m)", ""),
        ("c = Sub(x, m)  p = Add(c, s)", "m"),
        ("h = Tanh(x)  p = Sub(h, m)", ""),
        ("c = Sub(x, m)  h = Tanh(c)  p = Mul(h, m)", ""),
        ("p = Sub(m, x)", ""),
    ],
)
def test_means_and_deviations_of_inputs_are_not_trained(lines, prepared):
    arrays = {"m": normal(4, seed=2), "s": 1 + np.abs(normal(1, 4, seed=3))}
    used = {name: array for name, array in arrays.items() if name in _names(lines)}
    found = reasons(lines, used)
    assert found["w"] == "weight"
    assert {name for name, why in found.items() if why == PREPARED} == set(prepared)
    assert all(found[name] == "weight" for name in set(used) - set(prepared))


def _names(lines: str) -> list[str]:
    return lines.replace("(", " ").replace(")", " ").replace(",", " ").split()


def test_pixels_are_prepared_too():
    arrays = {"m": normal(4, seed=2), "s": normal(4, seed=3)}
    lines = (
        "half = Constant<value_float = 127.5>()  f = Cast<to = 1>(x)  d = Div(f, half)"
        "  c = Sub(d, m)  p = Mul(c, s)"
    )
    found = reasons(lines, arrays, x="uint8[N,4]")
    assert found["m"] == found["s"] == PREPARED


def test_centres_that_samples_are_compared_with_are_trained():
    text = """(float[N,4] x) => (float[N,3] y) {
        a = Constant<value_ints = [1]>()  u = Unsqueeze(x, a)  d = Sub(u, m)
        y = ReduceL2<axes = [2], keepdims = 0>(d)
    }"""
    found = decisions(text, {"m": normal(1, 3, 4, seed=2)})
    assert found["m"].trained


def test_a_shift_of_the_input_is_trained_if_there_is_nothing_else():
    found = decisions("(float[N,4] x) => (float[N,4] y) { y = Sub(x, m) }", {"m": normal(4)})
    assert found["m"].trained


CELLS = np.stack(np.meshgrid(np.arange(3), np.arange(5)), axis=-1).astype(np.float32)


@pytest.mark.parametrize(
    ("numbers", "trained"),
    [
        (CELLS, False),
        (CELLS / 2 - 0.7, False),
        (CELLS.reshape(1, -1, 2) + 0.5, False),
        (np.where(CELLS > 2, CELLS + 0.3, CELLS), True),
        (normal(5, 3, 2), True),
        (np.ones((5, 3, 2), np.float32), True),
    ],
)
def test_cells_of_a_detector_are_not_trained(numbers, trained):
    sizes = ",".join(map(str, numbers.shape))
    text = f"""(float[N,{sizes}] x) => (float[N,{sizes}] y) {{
        a = Mul(x, scale)  s = Sigmoid(a)  y = Add(s, grid)
    }}"""
    found = decisions(text, {"scale": normal(*numbers.shape, seed=9), "grid": numbers})
    assert found["scale"].trained
    assert found["grid"].trained == trained
    assert trained or found["grid"].reason == "positions on a grid"
