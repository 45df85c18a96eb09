import pytest

from gradients.emit import differentiated, run
from onnxtrain.gradients.rules import all_rules


@pytest.mark.parametrize("op", ["Floor", "Ceil", "Round", "Sign", "Hardmax"])
def test_steps_pass_no_gradient_on(op: str) -> None:
    of = differentiated(f"(double[2] x) => (double[2] y) {{ s = {op}(x)  y = Add(s, x) }}")
    assert run(of, x=[1.5, 2.5], d_y=[1.0, 3.0])["x_grad"].tolist() == [1, 3]


def test_nothing_is_both_zero_and_differentiable() -> None:
    zero = {(rule.domain, rule.op) for rule in all_rules() if rule.fn is None}
    other = {(rule.domain, rule.op) for rule in all_rules() if rule.fn is not None}
    assert not zero & other
