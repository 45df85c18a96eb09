"""A product with a weight and a bias becomes Gemm."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

WEIGHTS = {
    "w": normal(4, 6, seed=1, dtype=np.float64),
    "u": normal(6, 4, seed=2, dtype=np.float64),
    "b": normal(6, seed=3, dtype=np.float64),
    "row": normal(1, 6, seed=4, dtype=np.float64),
    "one": normal(1, seed=5, dtype=np.float64),
}


def model(nodes: str, shape: str = "N", outputs: str = "", opset: int = 20) -> Result:
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in WEIGHTS.items() if name in words}
    body = f"(double[{shape},4] x) => (double[{shape},6] y{outputs}) {{ {nodes} }}"
    return fused(body, used, trained=list(used), opset=opset)


@pytest.mark.parametrize("shape", ["N", "N,3", "N,L", "N,2,L"])
@pytest.mark.parametrize(
    ("nodes", "weight"),
    [
        ("p = MatMul(x, w) y = Add(p, b)", "w"),
        ("t = Transpose<perm=[1,0]>(u) p = MatMul(x, t) y = Add(b, p)", "u"),
        ("t = Transpose(u) p = MatMul(x, t) y = Add(p, b)", "u"),
    ],
)
def test_it_is_one_product_of_rows(nodes: str, weight: str, shape: str) -> None:
    result = model(nodes, shape)
    node = result.node("Gemm")
    assert [value.name for value in node.inputs[1:]] == [weight, "b"]
    assert not {"MatMul", "Add", "Transpose"} & set(result.ops)
    assert result.report.count("Gemm") == 1
    sizes = [5 if s == "L" else 2 if s == "N" else int(s) for s in shape.split(",")]
    same(result, {"x": normal(*sizes, 4, dtype=np.float64)}, ["x", weight, "b"])


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_an_old_opset_does_it_too(opset: int) -> None:
    result = model("p = MatMul(x, w) y = Add(p, b)", "N,L", opset=opset)
    assert result.node("Gemm").inputs[2].name == "b"
    same(result, {"x": normal(2, 3, 4, dtype=np.float64)}, ["x", "w", "b"])


def test_a_product_that_others_read_stays() -> None:
    result = model("p = MatMul(x, w) y = Add(p, b) z = Relu(p)", outputs=", double[N,6] z")
    assert "MatMul" in result.ops and result.report.fused == []


def test_a_bias_of_one_number_is_refused() -> None:
    result = model("p = MatMul(x, w) y = Add(p, one)")
    assert result.reasons() == ["the bias has shape [1], the product has 6 columns"]


def test_what_is_no_vector_is_no_bias() -> None:
    result = model("p = MatMul(x, w) y = Add(p, row)")
    assert result.report.fused == result.report.missed == []
