"""Parts that pass through a sequence come from Split instead."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.fusion.compare import Result, fused, same

NUMBERS = {
    "two": np.array(2),
    "four": np.array(4),
    "six": np.array(6),
    "sizes": np.array([1, 3, 2]),
    "first": np.array(0),
    "second": np.array(1),
    "last": np.array(-1),
}
X = normal(3, 6, dtype=np.float64)


def model(nodes: str, opset: int = 20, inputs: str = "double[N,6] x") -> Result:
    words = nodes.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = {name: value for name, value in NUMBERS.items() if name in words}
    return fused(f"({inputs}) => (double[N,M] y) {{ {nodes} }}", used, opset=opset)


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize(
    "nodes",
    [
        "s = SplitToSequence<axis=1>(x, two) a = SequenceAt(s, first) b = SequenceAt(s, second) "
        "y = Mul(a, b)",
        "s = SplitToSequence<axis=-1>(x, four) a = SequenceAt(s, last) y = Relu(a)",
        "s = SplitToSequence<axis=1>(x, sizes) a = SequenceAt(s, second) b = SequenceAt(s, second) "
        "y = Mul(a, b)",
        "s = SplitToSequence<axis=1>(x) a = SequenceAt(s, second) y = Relu(a)",
        "s = SplitToSequence<axis=1>(x, six) a = SequenceAt(s, last) y = Relu(a)",
    ],
)
def test_the_sequence_is_left_out(nodes: str, opset: int) -> None:
    result = model(nodes, opset)
    assert result.ops[0] == "Split" and "SequenceAt" not in result.ops
    assert result.report.count("Split") == 1
    same(result, {"x": X}, ["x"])


@pytest.mark.parametrize("opset", [11, 20])
def test_parts_of_given_sizes_need_no_known_whole(opset: int) -> None:
    nodes = "s = SplitToSequence<axis=-1>(x, sizes) y = SequenceAt(s, last)"
    result = model(nodes, opset, "double[N,M] x")
    assert result.ops == ["Split"]
    same(result, {"x": X}, ["x"])


@pytest.mark.parametrize(
    ("nodes", "inputs", "reason"),
    [
        (
            "s = SplitToSequence<axis=1>(x, two) y = ConcatFromSequence<axis=1>(s)",
            "double[N,6] x",
            "'ConcatFromSequence_y' (ConcatFromSequence) reads the parts as a sequence",
        ),
        (
            "s = SplitToSequence<axis=1>(x, two) y = SequenceAt(s, first)",
            "double[N,M] x",
            "the size of what is split is not known",
        ),
        (
            "s = SplitToSequence<axis=1>(x, n) y = SequenceAt(s, first)",
            "double[N,6] x, int64 n",
            "the sizes of the parts are not known",
        ),
        (
            "s = SplitToSequence<axis=1>(x, two) y = SequenceAt(s, n)",
            "double[N,6] x, int64 n",
            "'SequenceAt_y' (SequenceAt) reads the parts as a sequence",
        ),
        (
            "s = SplitToSequence<axis=1>(x, two) y = SequenceAt(s, four)",
            "double[N,6] x",
            "'SequenceAt_y' takes a part that is not there",
        ),
    ],
)
def test_other_sequences_stay(nodes: str, inputs: str, reason: str) -> None:
    result = model(nodes, inputs=inputs)
    assert "SplitToSequence" in result.ops and result.reasons() == [reason]


def test_a_part_that_is_taken_in_a_body_stays_in_the_sequence() -> None:
    result = model(
        "s = SplitToSequence<axis=1>(x, two) a = SequenceAt(s, first) "
        "y = If(c) <then_branch = t () => (double[N,2] p) { p = SequenceAt(s, second) }, "
        "else_branch = e () => (double[N,2] q) { q = Mul(a, a) }>",
        inputs="double[N,6] x, bool c",
    )
    assert result.reasons() == ["'SequenceAt_p' takes a part in a body"]
    for taken in (True, False):
        same(result, {"x": X, "c": np.array(taken)}, ["x"])
