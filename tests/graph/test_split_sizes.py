"""Sizes of parts, of which there are more than chunks."""

import numpy as np
import pytest

from gradients.emit import agrees_with_differences
from graph.text import model, values
from onnxtrain.graph.prepare import prepare

SPLIT = "(double[2,{size}] x) => ({outputs}) {{ {names} = Split<axis=-1, num_outputs={count}>(x) }}"


def _text(size: int, count: int) -> str:
    names = [f"y{index}" for index in range(count)]
    outputs = ", ".join(f"double[2,N{index}] {name}" for index, name in enumerate(names))
    return SPLIT.format(size=size, outputs=outputs, names=", ".join(names), count=count)


@pytest.mark.parametrize(
    ("size", "sizes"),
    [(5, [2, 2, 1, 0]), (1, [1, 0, 0]), (9, [2, 2, 2, 2, 1, 0]), (7, [2, 2, 2, 1]), (6, [3, 3])],
)
def test_parts_behind_the_end_are_empty(size: int, sizes: list[int]) -> None:
    text = _text(size, len(sizes))
    found = values(prepare(model(text, 18)))
    assert [found[f"y{index}"].shape[-1] for index in range(len(sizes))] == sizes
    x = np.arange(2.0 * size).reshape(2, size)
    grads = {f"d_y{index}": np.full((2, n), index + 1.0) for index, n in enumerate(sizes)}
    agrees_with_differences(text, "x", opset=18, x=x, **grads)
