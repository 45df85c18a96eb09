import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from gradients.emit import differentiated, emitted, run
from onnxtrain.errors import NoGradientError

PREVIEW = "ai.onnx.preview.training"


def test_a_step_of_an_optimizer_is_refused() -> None:
    text = (
        "(float[2] w, float[2] g, float r) => (float[2] v) "
        "{ v = com.microsoft.SGDOptimizer(r, w, g) }"
    )
    with pytest.raises(NoGradientError, match="SGDOptimizer"):
        differentiated(text, "g")


def test_parts_of_a_view_are_put_together_again() -> None:
    text = (
        "(float[6] x, int64[2] a, int64[1] b) => (float[2,2] y, float[2] z) "
        "{ y, z = com.microsoft.View(x, a, b) }"
    )
    found = run(
        differentiated(text, "x"),
        x=np.arange(6, dtype=np.float32),
        a=np.array([2, 2]),
        b=np.array([2]),
        d_y=np.float32([[1, 2], [3, 4]]),
        d_z=np.float32([5, 6]),
    )
    assert found["x_grad"].tolist() == [1, 2, 3, 4, 5, 6]


def test_what_is_handed_on_keeps_its_gradient() -> None:
    text = (
        "(float[2] x, float[2] w, int64 n) => (float[2] y, float[2] z) "
        "{ a, b = com.microsoft.PassThrough(x, w) y, z = com.microsoft.RecordEvent(n, a, b) }"
    )
    feeds = {"x": np.float32([1, 2]), "w": np.float32([3, 4]), "n": np.int64(-1)}
    found = run(differentiated(text), **feeds, d_y=np.float32([5, 6]), d_z=np.float32([7, 8]))
    assert found["x_grad"].tolist() == [5, 6] and found["w_grad"].tolist() == [7, 8]


def test_gradients_of_a_sum_over_processes_are_summed_over_them() -> None:
    text = (
        "(float[2] x, float[3] w) => (float[2] y, float[3] z) "
        "{ y, z = com.microsoft.NcclAllReduce<group_type=2>(x, w) }"
    )
    assert emitted(text) == ["ms.NcclAllReduce(d_y, d_z) -> x_grad, w_grad"]


def test_the_norm_of_many_tensors() -> None:
    text = "(float[2] x, float[1] w) => (float y) { y = com.microsoft.ReduceAllL2(x, w) }"
    found = run(differentiated(text), x=np.float32([2, 4]), w=np.float32([4]), d_y=np.float32(3))
    assert found["x_grad"].tolist() == [1, 2] and found["w_grad"].tolist() == [2]


def _momentum(r, t, x, g, v, *, alpha: float, beta: float, norm: float, mode: str):
    g = g + norm * x
    v = alpha * v + (beta if t > 0 else 1.0) * g
    return x - r * (g + alpha * v if mode == "nesterov" else v), v


@pytest.mark.parametrize("mode", ["standard", "nesterov"])
def test_a_step_that_changes_nothing_in_place_is_differentiated(mode: str) -> None:
    node = onnx.helper.make_node(
        "Momentum",
        ["r", "t", "x", "g", "v"],
        ["y", "u"],
        domain=PREVIEW,
        alpha=0.5,
        beta=0.25,
        norm_coefficient=0.125,
        mode=mode,
    )
    value = onnx.helper.make_tensor_value_info
    double, whole = onnx.TensorProto.DOUBLE, onnx.TensorProto.INT64
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [value("r", double, []), value("t", whole, [])] + [value(n, double, [3]) for n in "xgv"],
        [value(n, double, [3]) for n in "yu"],
    )
    imports = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(PREVIEW, 1)]
    of = differentiated(ir.from_proto(onnx.helper.make_model(graph, opset_imports=imports)))
    generator = np.random.default_rng(0)
    feeds = {name: generator.normal(size=3) for name in ("x", "g", "v", "d_y", "d_u")}
    found = run(of, r=np.float64(0.1), t=np.int64(2), **feeds)
    leaves = {n: torch.tensor(feeds[n], requires_grad=True) for n in "xgv"}
    rate = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    made = _momentum(rate, 2, *leaves.values(), alpha=0.5, beta=0.25, norm=0.125, mode=mode)
    seeds = [torch.tensor(feeds[name]) for name in ("d_y", "d_u")]
    expected = torch.autograd.grad(made, [rate, *leaves.values()], seeds)
    for name, true in zip(("r", *leaves), expected, strict=True):
        np.testing.assert_allclose(found[f"{name}_grad"], true.numpy(), rtol=1e-12)
