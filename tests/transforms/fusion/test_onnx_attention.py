"""ONNX's own Attention becomes FlashAttention where it is plain."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

SHAPES = {"q": (2, 4, 3, 16), "k": (2, 4, 5, 16), "v": (2, 4, 5, 6)}
INPUTS = "double[B,4,3,16] q, double[B,4,5,16] k, double[B,4,5,6] v"
FEEDS = {n: normal(*s, seed=i, dtype=np.float64) for i, (n, s) in enumerate(SHAPES.items())}


def model(nodes: str, inputs: str = "", outputs: str = "double[B,4,3,6] y") -> Result:
    return fused(f"({INPUTS}{inputs}) => ({outputs}) {{ {nodes} }}", opset=23)


@pytest.mark.parametrize(
    ("nodes", "scale", "causal"),
    [
        ("y = Attention(q, k, v)", 0.25, 0),
        ("y = Attention<scale=0.5>(q, k, v)", 0.5, 0),
        ("y = Attention<is_causal=1>(q, k, v)", 0.25, 1),
        ("y = Attention(q, k, v, m)", 0.25, 0),
        ("y = Attention(q, k, v, c)", 0.25, 0),
        ("y = Attention<is_causal=1>(q, k, v, c)", 0.25, 1),
    ],
)
def test_it_is_replaced(nodes: str, scale: float, causal: int) -> None:
    inputs = {"m": ", double[4,3,5] m", "c": ", bool[B,1,3,5] c"}
    masks = {"m": normal(4, 3, 5, dtype=np.float64), "c": np.ones((2, 1, 3, 5), bool)}
    masks["c"][1, ..., 3] = False
    name = next((name for name in masks if f", {name})" in nodes), None)
    result = model(nodes, "" if name is None else inputs[name])
    node = result.node("FlashAttention")
    assert result.report.count("Attention") == 1 and len(node.inputs) == 3 + (name is not None)
    assert node.attributes.get_float("scale") == scale
    assert node.attributes.get_int("is_causal") == causal
    feeds = FEEDS if name is None else {**FEEDS, name: masks[name]}
    same(result, feeds, ["q", "k", "v", *(["m"] if name == "m" else [])])


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "reason"),
    [
        ("y = Attention<softcap=2.0>(q, k, v)", "", "", "scores are bounded by a softcap"),
        (
            "y, a, b = Attention(q, k, v)",
            "",
            ", double[B,4,5,16] a",
            "other results than the first are used",
        ),
        (
            "y, a, b = Attention(q, k, v, , past_k, past_v)",
            ", double[B,4,2,16] past_k, double[B,4,2,6] past_v",
            "",
            "there are keys and values of the past, or lengths",
        ),
        (
            "y = Attention(q, k, v, m)",
            ", double[3,M] m",
            "",
            "the mask has M columns for 5 keys",
        ),
    ],
)
def test_more_is_left_to_its_own_kernel(nodes: str, inputs: str, outputs: str, reason: str) -> None:
    result = model(nodes, inputs, f"double[B,4,3,6] y{outputs}")
    assert result.ops == ["Attention"] and result.reasons() == [reason]


def test_packed_heads_are_left_to_its_own_kernel() -> None:
    result = fused(
        """(double[B,3,64] q, double[B,5,64] k, double[B,5,24] v) => (double[B,3,24] y) {
            y = Attention<q_num_heads=4, kv_num_heads=4>(q, k, v)
        }""",
        opset=23,
    )
    assert result.reasons() == ["queries, keys and values are not all [batch, head, length, size]"]
