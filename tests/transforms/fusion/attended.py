"""Models of attention around a Softmax, with queries, keys and values for them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from training.small import normal
from transforms.fusion.compare import Result, fused

B, H, T, S, D = 2, 3, 4, 5, 8
Q = normal(B, H, T, D, seed=1, dtype=np.float64)
K = normal(B, H, S, D, seed=2, dtype=np.float64)
V = normal(B, H, S, 6, seed=3, dtype=np.float64)
NUMBERS = {
    "scale": np.float64(0.25),
    "root": np.float64(0.5),
    "four": np.array([4.0]),
    "third": np.float64(1 / 3),
    "zero": np.float64(0),
    "closed": np.float64(-3e38),
    "weak": np.float64(-1e4),
    "none": np.array([0]),
    "never": np.float64(-np.inf),
    "little": np.float64(-1),
    "one": np.array([1]),
    "ratio": np.float64(0),
    "half": np.float64(0.5),
    "on": np.array(True),
    "off": np.array(False),
    "flat": np.array([-1, S, D]),
    "swapped": np.array([-1, H, D, S]),
    "turned": np.array([-1, D, S]),
    "column": np.array([1]),
    "queries": np.array([-1, T, D]),
    "values": np.array([-1, S, 6]),
    "scores": np.array([-1, H, T, S]),
    "weights": np.array([-1, T, S]),
    "heads": np.array([-1, H, T, 6]),
}
INPUTS = "double[B,3,4,8] q, double[B,3,5,8] k, double[B,3,5,6] v"
TURNED = "t = Transpose<perm=[0,1,3,2]>(k)"


def model(
    nodes: str, inputs: str = "", outputs: str = "double[B,3,4,6] y", *, qkv: str = INPUTS, **more
) -> Result:
    """Nodes that read queries, keys and values, other inputs and numbers by their names."""
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in {**NUMBERS, **more}.items() if name in words}
    return fused(f"({qkv}{inputs}) => ({outputs}) {{ {nodes} }}", used)


def attention(result: Result) -> ir.Node:
    node = result.node("FlashAttention")
    assert node.domain == "onnxtrain" and result.report.count("FlashAttention") == 1
    return node


FEEDS = {"q": Q, "k": K, "v": V}
