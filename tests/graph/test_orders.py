"""Axes in any order, and slices backwards to the end, have the shapes that they have in a run."""

import numpy as np
import onnxruntime
import pytest

from graph.text import model, proto
from onnxtrain import grad
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession

LAST, LAST_32 = 2**63 - 1, 2**31 - 1


@pytest.mark.parametrize("opset", [1, 10, 11])
@pytest.mark.parametrize("axes", [[2, 0], [3, 0, 2]], ids=str)
def test_axes_of_squeeze_in_any_order(axes: list[int], opset: int) -> None:
    text = f"""(float[1,3,1,1] x) => (float[] s) {{
        y = Squeeze<axes={axes}>(x)
        z = ReduceMean<axes=[0], keepdims=0>(y)
        s = ReduceSum<keepdims=0>(z) }}"""
    typed = prepare(model(text, opset)).graph
    assert typed.node(0).outputs[0].shape == (3, *[1] * (3 - len(axes)))
    x = np.arange(3, dtype=np.float32).reshape(1, 3, 1, 1)
    found = grad(proto(text, opset), wrt=["x"])({"x": x})["x"]
    np.testing.assert_allclose(found, np.full((1, 3, 1, 1), 1 / 3), rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "starts", "ends", "steps", "shape"),
    [
        ("int64", [3], [LAST], [-2], (2, 4)),
        ("int64", [-1, 0], [LAST_32, LAST], [-1, 2], (5, 2)),
        ("int64", [2, 9], [0, LAST], [-1, -3], (2, 2)),
        ("int32", [-1, -1], [LAST_32, LAST_32], [-1, 1], (5, 1)),
        ("int64", [LAST], None, [-1], (5, 4)),
    ],
    ids=str,
)
def test_slices_backwards_to_the_end(
    kind: str, starts: list[int], ends: list[int] | None, steps: list[int], shape: tuple[int, int]
) -> None:
    """Without ends, the starts stand for them too."""
    count, lists = len(starts), {"a": starts, "b": ends, "c": [*range(len(starts))], "d": steps}
    constants = ", ".join(
        f"{kind}[{count}] {name} = {{{', '.join(map(str, numbers))}}}"
        for name, numbers in lists.items()
        if numbers is not None
    )
    text = f"""(float[5,4] x) => (float[] s, float[] z) <{constants}> {{
        y = Slice(x, a, {"a" if ends is None else "b"}, c, d)
        z = Mul(y, y)
        s = ReduceSum<keepdims=0>(z) }}"""
    assert prepare(model(text, 13)).graph.outputs[1].shape == shape
    x = np.arange(1, 21, dtype=np.float32).reshape(5, 4)
    of = proto(text, 13)
    theirs = onnxruntime.InferenceSession(of.SerializeToString()).run(["z"], {"x": x})[0]
    ours = InferenceSession(of).run(["z"], {"x": x})[0]
    np.testing.assert_array_equal(ours, theirs)
    found = grad(of, wrt=["x"], outputs=["s"])({"x": x})["x"]
    np.testing.assert_array_equal(found, np.where(np.isin(x * x, theirs), 2 * x, 0))


@pytest.mark.parametrize("opset", [9, 10, 11])
def test_slices_of_sizes_with_names(opset: int) -> None:
    """One element of an axis is not as many as the axis has."""
    bounds, numbers = ", a, b, c", "<int64[1] a = {0}, int64[1] b = {1}, int64[1] c = {1}>"
    if opset < 10:
        bounds = numbers = ""
    by = "<axes=[1], starts=[0], ends=[1]>" if opset < 10 else ""
    text = f"""(float[B,T] x) => (float[] s) {numbers} {{
        y = Slice{by}(x{bounds})
        z = Sub(x, y)
        q = Mul(z, z)
        s = ReduceSum<keepdims=0>(q) }}"""
    shape = prepare(model(text, opset)).graph.node(0).outputs[0].shape
    assert shape is not None and str(shape[0]) == "B" and str(shape[1]) != "T"
    x = np.arange(8, dtype=np.float32).reshape(2, 4) ** 2
    expected = 2 * (x - x[:, :1])
    expected[:, 0] -= expected.sum(1)
    found = grad(proto(text, opset), wrt=["x"])({"x": x})["x"]
    np.testing.assert_array_equal(found, expected)
