import numpy as np
import pytest

from gradients.emit import differentiated, run


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_elements_that_tie_share_the_gradient(op: str) -> None:
    of = differentiated(f"(double[4] x) => (double y) {{ y = {op}<keepdims=0>(x) }}")
    grad = run(of, x=np.ones(4), d_y=2.0)["x_grad"]
    assert grad.tolist() == [0.5, 0.5, 0.5, 0.5]


def test_a_product_with_zeros() -> None:
    of = differentiated(
        "(double[3,3] x) => (double[3] y) <int64[1] a = {1}> { y = ReduceProd<keepdims=0>(x, a) }"
    )
    x = [[0, 2, 3], [0, 0, 5], [1, 2, 4]]
    grad = run(of, x=np.array(x, np.float64), d_y=np.ones(3))["x_grad"]
    assert grad.tolist() == [[6, 0, 0], [0, 0, 0], [8, 4, 2]]


def test_a_norm_of_zeros_has_no_slope() -> None:
    of = differentiated("(double[3] x) => (double y) { y = ReduceL2<keepdims=0>(x) }")
    assert run(of, x=np.zeros(3), d_y=1.0)["x_grad"].tolist() == [0, 0, 0]


def test_a_batch_of_nothing() -> None:
    of = differentiated(
        "(double[N,3] x) => (double[N] y) <int64[1] a = {1}> { y = ReduceMean<keepdims=0>(x, a) }"
    )
    assert run(of, x=np.zeros((0, 3)), d_y=np.zeros(0))["x_grad"].shape == (0, 3)
