"""act(gate)·up of the halves of one value."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain.gradients import build_gradient_graph
from training.small import normal
from transforms.fusion.compare import Result, fused, same

FEEDS = {"x": 2 * normal(3, 6, 8, seed=1, dtype=np.float64)}
NUMBERS = {
    "none": [0],
    "half": [4],
    "end": [2**63 - 1],
    "last": [-1],
    "one": [1],
    "two": [2],
    "five": [5],
    "equal": [4, 4],
    "unequal": [3, 5],
    "three": [3, 2, 3],
}
SPLIT = "a, b = Split<axis=-1, num_outputs=2>(x)"


def model(nodes: str, shape: str = "N,6,8", half: str = "N,6,4", outputs: str = "") -> Result:
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: np.array(value) for name, value in NUMBERS.items() if name in words}
    outputs = outputs or f"double[{half}] y"
    return fused(f"(double[{shape}] x) => ({outputs}) {{ {nodes} }}", used)


@pytest.mark.parametrize(
    ("nodes", "gate", "activation"),
    [
        (f"{SPLIT} s = Sigmoid(a) g = Mul(a, s) y = Mul(g, b)", 0, "swish"),
        (f"{SPLIT} s = Sigmoid(b) y = Mul(a, s)", 1, "sigmoid"),
        ("a, b = Split<axis=2>(x, equal) g = Gelu(b) y = Mul(a, g)", 1, "gelu"),
        (f'{SPLIT} g = Gelu<approximate="tanh">(a) y = Mul(g, b)', 0, "gelu_tanh"),
        (
            "b = Slice(x, half, end, last) a = Slice(x, none, half, last)"
            " r = Relu(b) y = Mul(a, r)",
            1,
            "relu",
        ),
    ],
)
def test_it_is_found(nodes: str, gate: int, activation: str) -> None:
    result = model(nodes)
    assert result.ops == ["GatedHalves"] and result.report.count("GatedHalves") == 1
    attributes = result.node("GatedHalves").attributes
    found = [attributes[name].value for name in ("axis", "gate", "activation")]
    assert found == [2, gate, activation]
    same(result, FEEDS, ["x"])
    graph = build_gradient_graph(result.after, ["x"], ["y"]).graph
    assert [node.op_type for node in graph.node] == ["GatedHalves", "GatedHalvesGrad"]


def test_another_axis_is_taken() -> None:
    nodes = "a, b = Split<axis=1, num_outputs=2>(x) s = Sigmoid(b) y = Mul(a, s)"
    result = model(nodes, half="N,3,8")
    assert result.ops == ["GatedHalves"]
    same(result, FEEDS, ["x"])


@pytest.mark.parametrize(
    "nodes",
    [
        "a, c, b = Split<axis=-1>(x, three) s = Sigmoid(b) y = Mul(a, s)",
        "a = Slice(x, none, end, last, two) b = Slice(x, one, end, last, two)"
        " s = Sigmoid(b) y = Mul(a, s)",
        "a = Slice(x, none, half, last) b = Slice(x, one, five, last) s = Sigmoid(b) y = Mul(a, s)",
        f"{SPLIT} r = Relu(x) c, d = Split<axis=-1, num_outputs=2>(r) s = Sigmoid(a) y = Mul(d, s)",
    ],
)
def test_other_parts_are_two_values(nodes: str) -> None:
    """Every second element, less than all, parts that overlap, halves of different values."""
    half = "N,6,3" if "three" in nodes else "N,6,4"
    result = model(nodes, half=half)
    assert "Gated" in result.ops and "GatedHalves" not in result.ops
    assert result.report.missed == []
    same(result, FEEDS, ["x"])


def test_unequal_parts_are_nothing_alike() -> None:
    nodes = "a, b = Split<axis=-1>(x, unequal) c = Slice(b, none, two, last) s = Sigmoid(c)"
    result = model(f"{nodes} d = Slice(a, none, two, last) y = Mul(d, s)", half="N,6,2")
    assert "GatedHalves" not in result.ops and result.report.missed == []


def test_halves_that_others_read_stay() -> None:
    nodes = f"{SPLIT} s = Sigmoid(b) y = Mul(a, s) z = Neg(a)"
    result = model(nodes, outputs="double[N,6,4] y, double[N,6,4] z")
    assert sorted(result.ops) == ["Gated", "Neg", "Split"]
    assert result.reasons() == ["'a' is read by node 'Neg_z' (Neg) too"]
    same(result, FEEDS, ["x"])


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ("", "only a run can tell whether the gate and its factor have one shape"),
        (
            "<double[N,K] a, double[N,K] b>",
            "only a run can tell whether the gate and its factor are halves",
        ),
    ],
)
def test_an_axis_of_unknown_size_is_refused(declared: str, reason: str) -> None:
    body = f"""(double[N,M] x) => (double[N,K] y) {declared}
        {{ a, b = Split<axis=-1, num_outputs=2>(x) s = Sigmoid(a) y = Mul(b, s) }}"""
    result = fused(body)
    assert "GatedHalves" not in result.ops and result.reasons() == [reason]


def test_a_relu_stays_with_its_batch_normalization() -> None:
    body = """(float[N,4] x, float[N,4] u) => (float[N,4] y)
        { n = BatchNormalization(x, s, b, m, v) r = Relu(n) y = Mul(r, u) }"""
    weights = {name: np.ones(4, np.float32) for name in "sbmv"}
    result = fused(body, weights)
    assert result.ops == ["BatchNormalization", "Relu", "Mul"]
    assert result.reasons() == ["the Relu is computed together with the normalization before it"]
