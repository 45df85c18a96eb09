"""Loops whose condition counts are told how often they run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from graph.text import model, proto
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession

LOOP = """(float[N, 2] x) => (int64 c, float[2] y, float[r, 2] rows)
  <int64 first = {FIRST}, int64 step = {STEP}, int64 most = {MOST}, bool yes = {1},
   int64 limit = {LIMIT}, int64[1] zero = {0}, int64 axis = {0}, float ceil = {9.0}> {
  SETUP
  begin = ReduceSum <keepdims = 0> (x, zero)
  c, y, rows = Loop (M, GO, first, begin) <body = b (int64 i, bool go, int64 k, float[2] s)
      => (bool on, int64 n, float[2] t, float[2] row) {
    n = Add(k, step)
    t = Add(s, s)
    row = Neg(s)
    CONDITION
  }>
}"""
COUNTER = "on = Less(n, limit)"


def text(condition: str, setup: str = "", told: str = "", go: str = "yes", **numbers: int) -> str:
    found = LOOP.replace("CONDITION", condition).replace("SETUP", setup)
    found = found.replace("M,", f"{told},").replace("GO,", f"{go},")
    given = {"FIRST": 0, "STEP": 1, "MOST": 50, "LIMIT": 5, **numbers}
    for name, number in given.items():
        found = found.replace(name, str(number))
    return found


def loop_of(of: str) -> ir.Node:
    found = prepare(model(of))
    (node,) = (node for node in found.graph.all_nodes() if node.op_type == "Loop")
    return node


def told_how_often(node: ir.Node) -> bool:
    """Whether a condition comes out of a body as it came in."""
    body = node.attributes["body"].as_graph()
    maker = body.outputs[0].producer()
    return maker is not None and maker.op_type == "Identity" and maker.inputs[0] is body.inputs[1]


def iterations(of: str, rows: int = 3) -> int:
    """How often the loop runs, the same as in onnxruntime and with the same results."""
    feeds = {"x": np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)}
    theirs = onnxruntime.InferenceSession(proto(of).SerializeToString()).run(None, feeds)
    ours = InferenceSession(proto(of)).run(None, feeds)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    return len(theirs[2])


@pytest.mark.parametrize(
    ("condition", "numbers", "expected"),
    [
        (COUNTER, {}, 5),
        (COUNTER, {"LIMIT": 0}, 1),
        (COUNTER, {"FIRST": 2}, 3),
        (COUNTER, {"STEP": 2, "LIMIT": 7}, 4),
        (COUNTER, {"STEP": 2, "LIMIT": 6}, 3),
        ("on = Less(k, limit)", {}, 6),
        ("on = Less(i, limit)", {}, 6),
        ("on = LessOrEqual(n, limit)", {}, 6),
        ("on = Greater(limit, n)", {}, 5),
        ("on = GreaterOrEqual(limit, n)", {}, 6),
        ("f = Cast<to = 1>(n) g = Cast<to = 1>(limit) on = Less(f, g)", {}, 5),
        ("f = Cast<to = 1>(n) on = Less(f, ceil)", {}, 9),
        ("a = Less(n, limit) b = Less(i, limit) on = And(b, a)", {}, 5),
        ("a = Less(n, limit) h = Identity(a) on = And(h, go)", {}, 5),
        ("m = Add(n, step) on = Less(m, limit)", {}, 4),
    ],
)
def test_iterations_are_counted(condition: str, numbers: dict[str, int], expected: int) -> None:
    of = text(condition, **numbers)
    node = loop_of(of)
    assert told_how_often(node)
    assert node.inputs[0].const_value.numpy().item() == expected
    assert iterations(of) == expected


@pytest.mark.parametrize(("most", "expected"), [(3, 3), (8, 5)])
def test_the_smaller_one_of_what_is_told_and_what_is_compared_counts(
    most: int, expected: int
) -> None:
    of = text(COUNTER, told="most", MOST=most)
    assert told_how_often(loop_of(of))
    assert iterations(of) == expected


def test_a_condition_that_is_false_at_the_beginning_stays() -> None:
    of = text(COUNTER, "no = Not(yes)", go="no")
    assert told_how_often(loop_of(of))
    assert iterations(of) == 0


SIZE = "s = Shape(x) rows_ = Gather(s, axis)"
DOUBLED = f"{SIZE} wide = Add(rows_, rows_)"


@pytest.mark.parametrize(
    ("condition", "setup", "told", "expected"),
    [
        ("on = Less(n, rows_)", SIZE, "", [1, 1, 3, 7]),
        ("on = LessOrEqual(n, wide)", DOUBLED, "", [1, 3, 7, 15]),
        ("a = Less(n, rows_) b = Less(n, limit) on = And(a, b)", SIZE, "", [1, 1, 3, 5]),
        ("on = Less(n, wide)", DOUBLED, "rows_", [0, 1, 3, 7]),
        (COUNTER, SIZE, "rows_", [0, 1, 3, 5]),
    ],
)
def test_a_limit_of_the_run_is_taken_from_it(
    condition: str, setup: str, told: str, expected: list[int]
) -> None:
    of = text(condition, setup, told)
    assert told_how_often(loop_of(of))
    assert [iterations(of, rows) for rows in (0, 1, 3, 7)] == expected


@pytest.mark.parametrize(
    "condition",
    [
        "m = Mul(k, k) on = Less(m, limit)",
        "w = Sub(limit, k) on = Less(n, w)",
        "a = Less(n, limit) b = Less(i, most) on = Or(a, b)",
        "z = ReduceSum<keepdims = 0>(t) on = Less(z, ceil)",
        "on = Less(limit, n)",
        "on = Greater(n, limit)",
    ],
)
def test_other_conditions_stay(condition: str) -> None:
    of = text(condition, told="most", MOST=4)
    assert not told_how_often(loop_of(of))
    assert 1 <= iterations(of) <= 4


def test_a_counter_that_goes_down_stays() -> None:
    of = text(COUNTER, told="most", STEP=-1, MOST=4)
    assert not told_how_often(loop_of(of))
    assert iterations(of) == 4


def test_a_float_that_cannot_tell_numbers_apart_stays() -> None:
    of = text("f = Cast<to = 1>(n) g = Cast<to = 1>(limit) on = Less(f, g)", LIMIT=2**24 + 1)
    assert not told_how_often(loop_of(of))


def test_a_counter_that_begins_anywhere_stays() -> None:
    of = text(COUNTER, SIZE).replace("first, begin", "rows_, begin")
    assert not told_how_often(loop_of(of))
    assert iterations(of) == 2
