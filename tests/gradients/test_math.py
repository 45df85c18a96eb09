import numpy as np
import pytest

from gradients.emit import differentiated, run


def grads(text: str, *, opset: int = 21, **feeds: object) -> dict[str, np.ndarray]:
    return run(differentiated(text, opset=opset), **feeds)


@pytest.mark.parametrize(("exponent", "slopes"), [(0.0, [0, 0]), (1.0, [1, 1]), (2.0, [0, 4])])
def test_powers_have_a_slope_at_zero(exponent: float, slopes: list[float]) -> None:
    text = "(double[2] a, double b) => (double[2] y) { y = Pow(a, b) }"
    found = grads(text, a=[0.0, 2.0], b=exponent, d_y=np.ones(2))
    assert found["a_grad"].tolist() == slopes
    assert np.isfinite(found["b_grad"])


@pytest.mark.parametrize(
    ("exponent", "slopes"), [(0, [0, 0]), (1, [1, 1]), (2, [0, 4]), (3, [0, 12])]
)
def test_known_powers_have_a_slope_at_zero(exponent: int, slopes: list[float]) -> None:
    text = f"(double[2] a) => (double[2] y) <double b = {{{exponent}}}> {{ y = Pow(a, b) }}"
    assert grads(text, a=[0.0, 2.0], d_y=np.ones(2))["a_grad"].tolist() == slopes


def test_exponents_of_what_is_not_positive_have_a_gradient_of_zero() -> None:
    text = "(double[3] a, double[3] b) => (double[3] y) { y = Pow(a, b) }"
    found = grads(text, a=[0.0, -2.0, 0.0], b=[-1.0, -2.0, 0.0], d_y=np.ones(3))
    assert found["b_grad"].tolist() == [0, 0, 0]


def test_whole_exponents_have_no_gradient() -> None:
    text = "(double[2] a, int64 b) => (double[2] y) { y = Pow(a, b) }"
    found = grads(text, a=[-3.0, 2.0], b=np.int64(3), d_y=np.ones(2))
    assert found["a_grad"].tolist() == [27, 12] and "b_grad" not in found


def test_an_exponent_may_have_another_floating_point_type() -> None:
    text = "(double[2] a, float b) => (double[2] y) { y = Pow(a, b) }"
    found = grads(text, a=[1.0, np.e], b=np.float32(1), d_y=np.ones(2))
    assert found["b_grad"].dtype == np.float32 and found["b_grad"] == np.float32(np.e)


def test_a_tensor_times_itself() -> None:
    assert grads("(double[2] w) => (double[2] y) { y = Mul(w, w) }", w=[3.0, 4.0], d_y=[1.0, 1.0])[
        "w_grad"
    ].tolist() == [6, 8]


@pytest.mark.parametrize(
    "op", ["Abs", "Atan", "Cos", "Erf", "Exp", "Reciprocal", "Relu", "Softplus", "Sqrt"]
)
def test_gradients_of_scalars_are_scalars(op: str) -> None:
    found = grads(f"(double x) => (double y) {{ y = {op}(x) }}", x=0.5, d_y=1.0)
    assert found["x_grad"].shape == ()


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_operands_that_tie_share_the_gradient(op: str) -> None:
    text = f"(double[2] a, double[2] b) => (double[2] y) {{ y = {op}(a, b) }}"
    found = grads(text, a=[1.0, 2.0], b=[1.0, 2.0], d_y=[1.0, 3.0])
    assert found["a_grad"].tolist() == found["b_grad"].tolist() == [0.5, 1.5]


def test_bounds_that_cross_leave_everything_to_the_upper_one() -> None:
    text = "(double[2] x, double a, double b) => (double[2] y) { y = Clip(x, a, b) }"
    found = grads(text, x=[0.0, 9.0], a=5.0, b=1.0, d_y=[1.0, 2.0])
    assert found["x_grad"].tolist() == [0, 0]
    assert (found["a_grad"], found["b_grad"]) == (0, 3)


def test_values_on_a_bound_keep_their_gradient() -> None:
    text = "(double[3] x) => (double[3] y) { y = Clip<min=-1.0, max=1.0>(x) }"
    found = grads(text, opset=10, x=[-1.0, 1.0, 2.0], d_y=np.ones(3))
    assert found["x_grad"].tolist() == [1, 1, 0]


def test_where_sums_back_what_was_broadcast() -> None:
    text = "(bool[2] c, double[2] a, double b) => (double[2] y) { y = Where(c, a, b) }"
    found = grads(text, c=[True, False], a=[1.0, 2.0], b=3.0, d_y=[5.0, 7.0])
    assert found["a_grad"].tolist() == [5, 0] and found["b_grad"] == 7
