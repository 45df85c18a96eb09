"""If, Loop, Scan and SequenceMap, run through the whole runtime."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from onnxtrain.errors import NodeError
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.library import default_registry
from onnxtrain.runtime.lower import LowerOptions, lower
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.plan import Plan
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.types import CUDA

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def parsed(text: str, opset: int = 21) -> onnx.ModelProto:
    header = f'<ir_version: 10, opset_import: ["": {opset}]> main '
    return onnx.parser.parse_model(header + text)


def run(text: str, device: str = "cpu", opset: int = 21, **feeds: Any) -> list[Any]:
    """Outputs, which must be the same when storage is reused and when it is not."""
    results = [
        InferenceSession(
            parsed(text, opset), SessionOptions(reuse_storage=reuse), [PROVIDERS[device]]
        ).run(None, feeds)
        for reuse in (True, False)
    ]
    for one, other in zip(*results, strict=True):
        np.testing.assert_equal(one, other)
    return results[0]


def cuda_plan(text: str) -> Plan:
    """The plan for a GPU, which need not be there."""
    return lower(prepare(load_model(parsed(text))), default_registry(), LowerOptions(CUDA))


X = np.array([1.0, -2.0, 3.0], np.float32)
BRANCH = """(bool c, float[3] x) => (float[3] y) {
  z = Neg(x)
  y = If (c) <
    then_branch = yes () => (float[3] a) { one = Constant <value = float {1.0}> ()
                                           a = Add(z, one) },
    else_branch = no () => (float[3] b) { b = Identity(x) }>
}"""


@pytest.mark.parametrize(("flag", "expected"), [(True, 1 - X), (False, X)])
def test_if_runs_one_branch(flag: bool, expected: np.ndarray, device: str) -> None:
    for cond in (np.array(flag), np.array([flag])):
        text = BRANCH.replace("bool c", "bool[1] c") if cond.ndim else BRANCH
        np.testing.assert_array_equal(run(text, device, c=cond, x=X)[0], expected)


def test_branches_may_differ_in_shape(device: str) -> None:
    text = """(bool c, float[3] x) => (float[N] y) {
      y = If (c) <then_branch = yes () => (float[6] a) { a = Concat<axis=0>(x, x) },
                  else_branch = no () => (float[3] b) { b = Identity(x) }> }"""
    assert len(run(text, device, c=np.array(True), x=X)[0]) == 6
    assert len(run(text, device, c=np.array(False), x=X)[0]) == 3


def test_an_output_never_is_the_caller_s_array() -> None:
    y = run(BRANCH, c=np.array(False), x=X)[0]
    y += 1
    assert X[0] == 1.0


def loop(body: str, outer: str = "", outputs: str = "float[3] y") -> str:
    names = ", ".join(output.split()[-1] for output in outputs.split(", "))
    return f"""(int64 m, bool c, float[3] x) => ({outputs}) {{
      {outer} {names} = Loop (m, c, x) <body = {body}>
    }}"""


COUNTED = loop(
    """b (int64 i, bool go, float[3] v) => (bool go_on, float[3] w, float[3] s) {
       f = Cast<to=1>(i)  w = Add(v, f)  s = Mul(v, f)  go_on = Identity(go) }""",
    outputs="float[3] y, float[N,3] rows",
)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_loop_carries_values_and_stacks_the_others(count: int, device: str) -> None:
    y, rows = run(COUNTED, device, m=np.array(count), c=np.array(True), x=X)
    np.testing.assert_array_equal(y, X + sum(range(count)))
    expected = [(X + sum(range(i))) * i for i in range(count)]
    np.testing.assert_array_equal(rows, np.array(expected, np.float32).reshape(count, 3))


def test_a_loop_that_may_not_start_gives_empty_rows(device: str) -> None:
    y, rows = run(COUNTED, device, m=np.array(5), c=np.array(False), x=X)
    np.testing.assert_array_equal(y, X)
    assert rows.shape == (0, 3) and rows.dtype == np.float32


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "double", "int8"])
def test_rows_of_a_loop_have_their_own_type(kind: str, count: int, device: str) -> None:
    number = {"bfloat16": 16, "float16": 10, "double": 11, "int8": 3}[kind]
    text = f"""(int64 m, float[3] x) => ({kind}[N,3] rows) {{
      y, rows = Loop (m, , x) <body = b (int64 i, bool go, float[3] v)
          => (bool go_on, float[3] w, {kind}[3] s) {{
        go_on = Identity(go)  w = Add(v, x)  s = Cast<to={number}>(w) }}> }}"""
    (rows,) = run(text, device, m=np.array(count), x=X)
    dtype = ml_dtypes.bfloat16 if kind == "bfloat16" else np.dtype(kind)
    assert rows.dtype == dtype
    expected = np.array([X * (k + 2) for k in range(count)], np.float32).reshape(count, 3)
    np.testing.assert_array_equal(rows, expected.astype(dtype))


def test_loop_stops_when_its_condition_fails(device: str) -> None:
    text = """(float[3] x) => (float[3] y, int64[N] steps) {
      none = Constant <value = int64 {100}> ()
      y, steps = Loop (none, , x) <body = b (int64 i, bool go, float[3] v)
                               => (bool go_on, float[3] w, int64 s) {
        ten = Constant <value = float {10.0}> ()
        w = Add(v, v)  largest = ReduceMax<keepdims=0>(w)  go_on = Less(largest, ten)
        s = Identity(i) }>
    }"""
    y, steps = run(text, device, x=X)
    np.testing.assert_array_equal(y, X * 4)
    np.testing.assert_array_equal(steps, [0, 1])


def test_a_loop_may_have_neither_a_count_nor_a_condition_to_begin_with(device: str) -> None:
    text = """(float[3] x) => (float[3] y) {
      y = Loop (, , x) <body = b (int64 i, bool go, float[3] v) => (bool go_on, float[3] w) {
        three = Constant <value = int64 {2}> ()
        w = Add(v, v)  go_on = Less(i, three) }>
    }"""
    np.testing.assert_array_equal(run(text, device, x=X)[0], X * 8)


def test_if_inside_a_loop_sees_both_outer_scopes(device: str) -> None:
    text = loop(
        """b (int64 i, bool go, float[3] v) => (bool go_on, float[3] w) {
           go_on = Identity(go)  two = Constant <value = int64 {2}> ()  early = Less(i, two)
           w = If (early) <then_branch = t () => (float[3] p) { p = Add(v, z) },
                           else_branch = e () => (float[3] q) { q = Mul(v, z) }> }""",
        outer="z = Abs(x)",
    )
    expected = X
    for i in range(4):
        expected = expected + np.abs(X) if i < 2 else expected * np.abs(X)
    np.testing.assert_array_equal(
        run(text, device, m=np.array(4), c=np.array(True), x=X)[0], expected
    )


def test_names_of_a_body_may_hide_outer_ones(device: str) -> None:
    text = loop(
        """b (int64 i, bool go, float[3] v) => (bool go_on, float[3] w) {
           go_on = Identity(go)  z = Neg(v)  w = Add(z, z) }""",
        outer="z = Abs(x)  u = Add(z, z)",
    )
    np.testing.assert_array_equal(
        run(text, device, m=np.array(1), c=np.array(True), x=X)[0], -2 * X
    )


def test_a_body_may_return_what_it_was_given(device: str) -> None:
    text = """(int64 m, float[3] x) => (float[3] a, float[3] b, float[N,3] s) {
      a, b, s = Loop (m, , x, x) <body = b0 (int64 i, bool go, float[3] v, float[3] w)
          => (bool go, float[3] w, float[3] v, float[3] u) { u = Add(v, w) }> }"""
    a, b, s = run(text, device, m=np.array(3), x=X)
    np.testing.assert_array_equal(a, X)
    np.testing.assert_array_equal(b, X)
    np.testing.assert_array_equal(s, np.stack([2 * X] * 3))
    a += 1
    np.testing.assert_array_equal(b, X)


def test_a_node_may_leave_out_the_last_outputs() -> None:
    text = COUNTED.replace(", float[N,3] rows)", ")").replace("y, rows =", "y =")
    (y,) = run(text, m=np.array(3), c=np.array(True), x=X)
    np.testing.assert_array_equal(y, X + 3)


def test_sequences_go_round(device: str) -> None:
    text = """(int64 m, float[3] x) => (seq(float[3]) y) {
      none = SequenceEmpty <dtype = 1> ()
      y = Loop (m, , none) <body = b (int64 i, bool go, seq(float[3]) s)
          => (bool go_on, seq(float[3]) t) {
        f = Cast<to=1>(i)  v = Mul(x, f)  t = SequenceInsert(s, v)  go_on = Identity(go) }>
    }"""
    (found,) = run(text, device, m=np.array(3), x=X)
    np.testing.assert_array_equal(np.stack(found), np.stack([X * i for i in range(3)]))


def test_the_counter_may_steer_shapes(device: str) -> None:
    text = """(int64 m, float[3] x) => (float y) {
      zero = Constant <value = float {0.0}> ()
      y = Loop (m, , zero) <body = b (int64 i, bool go, float v) => (bool go_on, float w) {
        axis = Constant <value_ints = [0]> ()  first = Constant <value_ints = [0]> ()
        end = Unsqueeze(i, axis)  part = Slice(x, first, end)
        total = ReduceSum<keepdims=0>(part)  w = Add(v, total)  go_on = Identity(go) }>
    }"""
    assert run(text, device, m=np.array(4), x=X)[0] == sum(X[:i].sum() for i in range(4))


SCAN = """(float[2] start, float[3,2] x) => (float[2] last, float[3,2] rows) {
  last, rows = Scan (start, x) <num_scan_inputs = 1, body = b (float[2] s, float[2] r)
      => (float[2] t, float[2] o) { t = Add(s, r)  o = Mul(t, r) }>
}"""
START, ROWS = np.array([1.0, 2.0], np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)


def scanned(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    state, out = START, []
    for row in rows:
        state = state + row
        out.append(state * row)
    return state, np.stack(out)


def test_scan_walks_along_an_axis(device: str) -> None:
    for text, opset in ((SCAN, 21), (SCAN, 9)):
        last, rows = run(text, device, opset, start=START, x=ROWS)
        for found, expected in zip((last, rows), scanned(ROWS), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_scan_may_walk_backwards_and_along_other_axes(device: str) -> None:
    options = (
        "num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1], "
        "scan_output_axes = [-1], scan_output_directions = [1],"
    )
    text = SCAN.replace("num_scan_inputs = 1,", options).replace("float[3,2]", "float[2,3]")
    last, rows = run(text, device, start=START, x=np.ascontiguousarray(ROWS.T))
    state, out = scanned(ROWS[::-1])
    np.testing.assert_array_equal(last, state)
    np.testing.assert_array_equal(rows, out[::-1].T)


def test_scan_of_nothing_gives_empty_rows(device: str) -> None:
    text = SCAN.replace("float[3,2]", "float[N,2]")
    last, rows = run(text, device, start=START, x=ROWS[:0])
    np.testing.assert_array_equal(last, START)
    assert rows.shape == (0, 2)


def test_the_first_scan_has_a_batch_and_lengths(device: str) -> None:
    text = """(int64[2] n, float[2,2] start, float[2,3,2] x)
        => (float[2,2] last, float[2,3,2] rows) {
      last, rows = Scan (n, start, x) <num_scan_inputs = 1, body = b (float[2] s, float[2] r)
          => (float[2] t, float[2] o) { t = Add(s, r)  o = Mul(t, r) }>
    }"""
    feeds = {"start": np.stack([START, START]), "x": np.stack([ROWS, ROWS + 1])}
    last, rows = run(text, device, 8, n=np.array([3, 1]), **feeds)
    full, short = scanned(ROWS), scanned(ROWS[:1] + 1)
    np.testing.assert_array_equal(last, np.stack([full[0], short[0]]))
    np.testing.assert_array_equal(rows[0], full[1])
    np.testing.assert_array_equal(rows[1], np.concatenate([short[1], np.zeros((2, 2))]))


MAP = """(seq(float[N]) s, float t) => (seq(float[N]) y) {
  y = SequenceMap (s, t) <body = b (float[N] a, float u) => (float[N] c) { c = Mul(a, u) }>
}"""


def test_sequence_map_applies_its_body(device: str) -> None:
    items = [X, X[:2], X[:0]]
    (found,) = run(MAP, device, s=items, t=np.array(2, np.float32))
    for item, expected in zip(found, items, strict=True):
        np.testing.assert_array_equal(item, 2 * expected)


def test_sequence_map_refuses_sequences_of_different_lengths() -> None:
    text = MAP.replace("float t)", "seq(float) t)")
    with pytest.raises(NodeError, match="sequences of 1 and of 2 elements"):
        run(text, s=[X], t=[np.float32(1), np.float32(2)])


def test_scan_refuses_inputs_of_different_lengths() -> None:
    text = """(float[N,2] x, float[M,2] z) => (float[K,2] rows) {
      rows = Scan (x, z) <num_scan_inputs = 2,
        body = b (float[2] r, float[2] q) => (float[2] o) { o = Mul(q, r) }> }"""
    with pytest.raises(NodeError, match="different lengths"):
        run(text, x=ROWS, z=np.zeros((4, 2), np.float32))


def test_a_failure_in_a_body_names_its_node() -> None:
    text = """(int64 m, float[3] x, float[N] z) => (float[M] y) {
      y = Loop (m, , x) <body = b (int64 i, bool go, float[K] v) => (bool go_on, float[L] w) {
        [inside] w = Add(v, z)  go_on = Identity(go) }> }"""
    with pytest.raises(NodeError, match="node 'inside'"):
        run(text, m=np.array(1), x=X, z=X[:2])


def moves(plan: Plan, op: str) -> int:
    return sum(step.kernel.op == op for step in plan.block.walk())


def test_on_a_gpu_a_counted_loop_never_waits() -> None:
    assert moves(cuda_plan(COUNTED), "ToHost") == 0


def test_on_a_gpu_a_condition_on_the_device_is_read_once_an_iteration() -> None:
    plan = cuda_plan(
        loop(
            """b (int64 i, bool go, float[3] v) => (bool go_on, float[3] w) {
               ten = Constant <value = float {10.0}> ()
               w = Add(v, v)  largest = ReduceMax<keepdims=0>(w)  go_on = Less(largest, ten) }"""
        )
    )
    assert moves(plan, "ToHost") == 1


def test_on_a_gpu_branches_that_compute_shapes_stay_on_the_host() -> None:
    plan = cuda_plan(
        """(bool c, float[N,3] x) => (float[M] y) {
          shape = Shape(x)
          s = If (c) <then_branch = t () => (int64[1] a) {
                        all = Constant <value_ints = [-1]> ()  a = Identity(all) },
                      else_branch = e () => (int64[2] b) { b = Abs(shape) }>
          y = Reshape(x, s) }"""
    )
    assert moves(plan, "ToHost") == moves(plan, "ToDevice") == 0


def test_on_a_gpu_what_is_moved_in_a_branch_is_moved_again_elsewhere() -> None:
    text = """(bool c, float[N,3] x) => (float[2] y, int64[2] z) {
      shape = Shape(x)
      y = If (c) <then_branch = t () => (float[2] a) { f = Cast<to=1>(shape)  a = Neg(f) },
                  else_branch = e () => (float[2] b) { g = Cast<to=1>(shape)  b = Mul(g, g) }>
      z = Add(shape, shape) }"""
    source = cuda_plan(text).source()
    compile(source, "plan", "exec")
