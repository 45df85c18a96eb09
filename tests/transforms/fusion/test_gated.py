"""act(gate)·up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

FEEDS = {name: 2 * normal(3, 5, seed=n, dtype=np.float64) for n, name in enumerate("xu")}
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "SiLU": ("s = Sigmoid(x) a = Mul(x, s)", {"activation": "swish", "alpha": 1.0}),
    "Gelu": ("a = Gelu(x)", {"activation": "gelu"}),
    "sigmoid": ("a = Sigmoid(x)", {"activation": "sigmoid"}),
    "Relu": ("a = Relu(x)", {"activation": "relu"}),
    "tanh": ('a = Gelu<approximate="tanh">(x)', {"activation": "gelu_tanh"}),
}


def model(nodes: str, up: str = "N,5", outputs: str = "double[N,5] y") -> Result:
    return fused(f"(double[N,5] x, double[{up}] u) => ({outputs}) {{ {nodes} }}")


@pytest.mark.parametrize("order", ["a, u", "u, a"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_it_is_found(name: str, order: str) -> None:
    nodes, expected = ACTIVATIONS[name]
    result = model(f"{nodes} y = Mul({order})")
    assert result.ops == ["Gated"] and result.report.count("Gated") == 1
    node = result.node("Gated")
    assert [value.name for value in node.inputs] == ["x", "u"]
    assert {key: node.attributes[key].value for key in expected} == expected
    same(result, FEEDS, ["x", "u"])


def test_operators_of_older_models_are_taken() -> None:
    body = """(double[N,5] x, double[N,5] u) => (double[N,5] y)
        { a = com.microsoft.FastGelu(x) y = Mul(a, u) }"""
    result = fused(body, opset=17, imports=', "com.microsoft" : 1')
    assert result.ops == ["Gated"]
    same(result, FEEDS, ["x", "u"])


def test_a_bias_is_not_lost() -> None:
    body = """(double[N,5] x, double[N,5] u, double[5] b) => (double[N,5] y)
        { a = com.microsoft.FastGelu(x, b) y = Mul(a, u) }"""
    assert fused(body, imports=', "com.microsoft" : 1').ops == ["FastGelu", "Mul"]


@pytest.mark.parametrize("up", ["1", "5", "1,5", "3,1"])
def test_factors_that_are_stretched_are_nothing_alike(up: str) -> None:
    body = f"(double[3,5] x, double[{up}] u) => (double[3,5] y) {{ a = Gelu(x) y = Mul(a, u) }}"
    result = fused(body)
    assert result.ops == ["Gelu", "Mul"] and result.report.missed == []


def test_shapes_that_may_differ_are_refused() -> None:
    (reason,) = model("a = Gelu(x) y = Mul(a, u)", up="M,5").reasons()
    assert reason == "only a run can tell whether the gate and its factor have one shape"


def test_an_activation_that_others_read_stays() -> None:
    nodes = "a = Gelu(x) y = Mul(a, u) z = Relu(a)"
    result = model(nodes, outputs="double[N,5] y, double[N,5] z")
    assert sorted(result.ops) == ["Gelu", "Mul", "Relu"]


def test_an_activation_times_itself_stays() -> None:
    assert model("a = Gelu(x) b = Mul(a, a) y = Add(b, u)").ops == ["Gelu", "Mul", "Add"]


def test_a_product_of_two_activations_keeps_one() -> None:
    result = model('a = Gelu(x) b = Gelu<approximate="tanh">(u) y = Mul(a, b)')
    assert result.ops == ["Gelu", "Gated"]
    same(result, FEEDS, ["x", "u"])
