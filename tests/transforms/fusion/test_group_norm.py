"""Groups of channels, written as operators and as instances between two Reshapes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, fused_model, same

N, C, G, H, W = 2, 6, 3, 4, 5
FEEDS = {"x": normal(N, C, H, W, seed=1, dtype=np.float64)}
WEIGHTS = {
    "one": np.ones(G),
    "zero": np.zeros(G),
    "other": np.full(G, 2.0),
    "groups": np.array([0, G, -1]),
    "rows": np.array([-1, G, C // G * H * W]),
    "back": np.array([-1, C, H, W]),
    "turned": np.array([-1, H, W, C]),
    "scale": normal(C, 1, 1, seed=2, dtype=np.float64),
    "shift": normal(1, C, 1, 1, seed=3, dtype=np.float64),
    "columns": normal(W, seed=4, dtype=np.float64),
    "i": np.array(1),
    "rank": np.array(4),
    "s": normal(C, seed=5, dtype=np.float64),
    "b": normal(C, seed=6, dtype=np.float64),
}
GROUPED = """r = Reshape(x, groups) n = InstanceNormalization<epsilon=0.01>(r, one, zero)
    z = Reshape(n, back)"""


def model(nodes: str, samples: str = "N", opset: int = 20, outputs: str = "") -> Result:
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in WEIGHTS.items() if name in words}
    trained = [name for name in ("scale", "shift", "s", "b") if name in used]
    shape = f"double[{samples},{C},{H},{W}]"
    body = f"({shape} x) => ({outputs or f'{shape} y'}) {{ {nodes} }}"
    return fused(body, used, trained=trained, opset=opset)


@pytest.mark.parametrize(
    ("nodes", "count", "trained"),
    [
        (f"{GROUPED} m = Mul(z, scale) y = Add(m, shift)", G, ["scale", "shift"]),
        (f"{GROUPED} m = Mul(scale, z) y = Add(shift, m)", G, ["scale", "shift"]),
        (f"{GROUPED} y = Mul(z, scale)", G, ["scale"]),
        (f"{GROUPED} y = Add(z, shift)", G, ["shift"]),
        (f"{GROUPED} y = Mul(z, columns)", G, []),  # a scale of something else stays behind it
        ("y = InstanceNormalization(x, s, b)", C, ["s", "b"]),
    ],
)
def test_it_is_found(nodes: str, count: int, trained: list[str]) -> None:
    result = model(nodes, samples="2")
    assert not {"InstanceNormalization", "Add"} & set(result.ops)
    assert ("Mul" in result.ops) == ("columns" in nodes)
    assert result.node("GroupNormalized").attributes.get_int("num_groups") == count
    same(result, FEEDS, ["x", *trained])


def test_scales_of_channels_whose_axes_are_computed() -> None:
    """Until they are, the shape of what an Unsqueeze gives is not known."""
    axes = "last = Sub(rank, i) axes = Range(i, last, i) "
    vectors = "w = Unsqueeze(s, axes) v = Unsqueeze(b, axes) "
    result = model(f"{axes}{vectors}{GROUPED} m = Mul(z, w) y = Add(m, v)", samples="2")
    assert not {"InstanceNormalization", "Mul", "Add"} & set(result.ops)
    same(result, FEEDS, ["x", "s", "b"])


def test_samples_may_be_known_by_name_only() -> None:
    nodes = f"{GROUPED.replace('back', 'same')} m = Mul(z, scale) y = Add(m, shift)"
    head = "same = Shape(x) "
    result = model(head + nodes)
    assert "GroupNormalized" in result.ops and "InstanceNormalization" not in result.ops
    same(result, FEEDS, ["x", "scale", "shift"])


def test_the_operator_of_newer_models_is_taken() -> None:
    nodes = "y = GroupNormalization<num_groups=3, epsilon=0.01>(x, s, b)"
    result = model(nodes, opset=21)
    assert result.ops == ["GroupNormalized"]
    same(result, FEEDS, ["x", "s", "b"])


def test_a_scale_for_each_group_is_refused() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
        g (double[2,6,4] x, double[3] s, double[3] b) => (double[2,6,4] y)
        { y = GroupNormalization<num_groups=3>(x, s, b) }"""
    result = fused_model(onnx.parser.parse_model(text))
    assert result.reasons() == ["there is a scale for each group"]


@pytest.mark.parametrize(
    "nodes",
    [
        GROUPED.replace("one", "other") + " y = Relu(z)",  # groups are scaled
        GROUPED.replace("back", "turned") + " k = Reshape(z, back) y = Relu(k)",  # other channels
    ],
)
def test_other_groups_are_instances(nodes: str) -> None:
    result = model(nodes, samples="2")
    assert result.node("GroupNormalized").attributes.get_int("num_groups") == G
    assert result.ops.count("Reshape") >= 2
    same(result, FEEDS, ["x"])


def test_what_others_read_stays() -> None:
    shape = f"double[2,{C},{H},{W}]"
    nodes = f"{GROUPED} y = Mul(z, scale) k = Relu(z)"
    result = model(nodes, samples="2", outputs=f"{shape} y, {shape} k")
    assert sorted(result.ops) == ["GroupNormalized", "Mul", "Relu"]
    same(result, FEEDS, ["x", "scale"])


def test_channels_that_are_not_known_are_refused() -> None:
    body = """(double[N,C,4] x, double[C] s, double[C] b) => (double[N,C,4] y)
        { y = InstanceNormalization(x, s, b) }"""
    assert fused(body).reasons() == ["the number of channels or groups is not known"]
