import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gradients.against import Twice
from gradients.emit import differentiated, run
from graph.text import proto
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.runtime.session import InferenceSession


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_elements_that_tie_share_the_gradient(op: str) -> None:
    of = differentiated(f"(double[4] x) => (double y) {{ y = {op}<keepdims=0>(x) }}")
    grad = run(of, x=np.ones(4), d_y=2.0)["x_grad"]
    assert grad.tolist() == [0.5, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceSum", "ReduceProd", "ReduceL2"])
@pytest.mark.parametrize(("noop", "y"), [(1, np.array([3.0, 4.0])), (0, np.array(1.0))])
def test_no_axes_that_are_fed_mean_none_or_all(op: str, noop: int, y: np.ndarray) -> None:
    of = differentiated(
        f"(double[2] x, int64[n] a) => (double[] y) "
        f"{{ y = {op}<noop_with_empty_axes={noop}, keepdims=0>(x, a) }}",
        opset=18,
    )
    x, d_y = np.array([3.0, 4.0]), np.ones_like(y)
    grad = run(of, x=x, a=np.zeros(0, np.int64), d_y=d_y)["x_grad"]
    everything = {"ReduceMax": [0, 1], "ReduceSum": [1, 1], "ReduceProd": [4, 3]}
    expected = [1, 1] if noop else everything.get(op, [0.6, 0.8])
    np.testing.assert_allclose(grad, expected, rtol=1e-12)


def test_sizes_without_a_name_are_not_taken_for_the_same() -> None:
    of = differentiated(
        "(double[?,3] x, int64[1] a) => (double[?] y) { y = ReduceMean<keepdims=0>(x, a) }"
    )
    for axis, grad in ((0, 1 / 5), (1, 1 / 3)):
        d_y = np.ones(3 if axis == 0 else 5)
        found = run(of, x=np.ones((5, 3)), a=np.array([axis]), d_y=d_y)["x_grad"]
        np.testing.assert_allclose(found, np.full((5, 3), grad))


def test_a_product_with_zeros() -> None:
    of = differentiated(
        "(double[3,3] x) => (double[3] y) <int64[1] a = {1}> { y = ReduceProd<keepdims=0>(x, a) }"
    )
    x = [[0, 2, 3], [0, 0, 5], [1, 2, 4]]
    grad = run(of, x=np.array(x, np.float64), d_y=np.ones(3))["x_grad"]
    assert grad.tolist() == [[6, 0, 0], [0, 0, 0], [8, 4, 2]]


ZEROS = np.array([[0.0, 2.0, 3.0], [0.0, 5.0, 0.0], [1.5, 2.0, 4.0], [0.0, 0.0, 0.0]])


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_a_product_with_zeros_is_right_twice(opset: int) -> None:
    axes = "(x, a)" if opset >= 18 else "<axes=[1]>(x)"
    reduced = f"ReduceProd<keepdims=0>{axes}".replace("><", ", ")
    text = f"""(double[4,3] x) => (double l) <int64[1] a = {{1}}> {{
        y = {reduced}  s = Mul(y, y)  t = Add(s, y)  l = ReduceSum<keepdims=0>(t) }}"""

    def loss(x: torch.Tensor) -> torch.Tensor:
        products = [math.prod(row, start=torch.ones(())) for row in x]
        return sum(p * p + p for p in products)

    Twice(text, "x", opset=opset).agrees(loss, x=ZEROS)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_products_with_zeros_are_right_twice(exclusive: int, reverse: int) -> None:
    text = f"""(double[4,3] x, double[4,3] w) => (double l) <int64 a = {{1}}> {{
        y = CumProd<exclusive={exclusive}, reverse={reverse}>(x, a)
        s = Mul(y, w)  l = ReduceSum<keepdims=0>(s) }}"""
    w = np.random.default_rng(1).normal(size=(4, 3))

    def loss(x: torch.Tensor) -> torch.Tensor:
        rows = []
        for row in x:
            factors = [*row][::-1] if reverse else [*row]
            count = [range(k + 1 - exclusive) for k in range(3)]
            made = [math.prod([factors[k] for k in r], start=torch.ones(())) for r in count]
            rows.append(torch.stack(made[::-1] if reverse else made))
        return (torch.stack(rows) * torch.tensor(w)).sum()

    Twice(text, "x", opset=26).agrees(loss, x=ZEROS, w=w)


def _third(text: str, loss: Callable[..., torch.Tensor], x: np.ndarray) -> None:
    """Compare the gradient of a product with the second gradient."""
    graph, v, w = proto(text, 26), *np.random.default_rng(0).normal(size=(2, *x.shape))
    for ys in ("l", "x_grad", "x_grad.2"):
        graph = build_gradient_graph(graph, "x", ys)
    leaf = torch.tensor(x, requires_grad=True)
    (true,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
    for weight in (v, w):
        (true,) = torch.autograd.grad((true * torch.tensor(weight)).sum(), leaf, create_graph=True)
    feeds = {"x": x, "l_grad": np.float64(1), "x_grad_grad": v, "x_grad.2_grad": w}
    (found,) = InferenceSession(graph).run(["x_grad.3"], feeds)
    np.testing.assert_allclose(found, true.detach().numpy(), rtol=1e-10, atol=1e-12)


MANY_ZEROS = [[1, 2, 3, 4], [0, 2, 3, 4], [0, 0, 3, 4], [2, 0, 3, 0], [0, 0, 0, 4], [0, 0, 0, 0]]


@pytest.mark.parametrize("x", MANY_ZEROS, ids=str)
def test_products_with_zeros_are_right_three_times(x: list[float]) -> None:
    data = np.array(x, np.float64)
    whole = "(double[4] x) => (double l) { l = ReduceProd<keepdims=0>(x) }"
    _third(whole, lambda x: x[0] * x[1] * x[2] * x[3], data)
    running = """(double[4] x) => (double l) <int64 a = {0}> {
        y = CumProd(x, a)  z = Sin(y)  l = ReduceSum<keepdims=0>(z) }"""
    _third(running, lambda x: sum(torch.sin(x[: k + 1].prod()) for k in range(4)), data)
    scattered = """(double[4] x) => (double l)
        <double[1] one = {1.5}, int64[4] i = {0, 0, 0, 0}> {
        l1 = ScatterElements<reduction="mul">(one, i, x)  l = ReduceSum<keepdims=0>(l1) }"""
    _third(scattered, lambda x: 1.5 * x[0] * x[1] * x[2] * x[3], data)


def test_a_norm_of_zeros_has_no_slope() -> None:
    of = differentiated("(double[3] x) => (double y) { y = ReduceL2<keepdims=0>(x) }")
    assert run(of, x=np.zeros(3), d_y=1.0)["x_grad"].tolist() == [0, 0, 0]


def test_a_batch_of_nothing() -> None:
    of = differentiated(
        "(double[N,3] x) => (double[N] y) <int64[1] a = {1}> { y = ReduceMean<keepdims=0>(x, a) }"
    )
    assert run(of, x=np.zeros((0, 3)), d_y=np.zeros(0))["x_grad"].shape == (0, 3)


def test_a_batch_of_nothing_along_axes_that_are_fed() -> None:
    of = differentiated(
        "(double[N,3] x, int64[1] a) => (double[M] y) { y = ReduceMean<keepdims=0>(x, a) }"
    )
    x, a = np.zeros((0, 3)), np.array([1])
    assert run(of, x=x, a=a, d_y=np.zeros(0))["x_grad"].shape == (0, 3)
