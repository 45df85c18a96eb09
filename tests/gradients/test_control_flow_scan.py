"""Gradients of Scan: axes, directions, captured values, batches with lengths."""

import numpy as np
import pytest
import torch

from gradients.against import Twice, agrees_once
from gradients.emit import differentiated, run
from graph.text import proto
from onnxtrain.errors import NoGradientError
from onnxtrain.gradients import build_gradient_graph

RNG = np.random.default_rng(0)
START, W = RNG.normal(size=2), RNG.normal(size=2)
BODY = """b (double[2] s, double[2] r) => (double[2] t, double[2] o)
  { a = Mul(s, w)  c = Add(a, r)  t = Tanh(c)  o = Mul(t, r) }"""
SCAN = f"""(double[2] start, double[N,2] x, double[2] w) => (double l) {{
  h = Mul(start, w)
  last, rows = Scan (start, x) <num_scan_inputs = 1, body = {BODY}>
  q = Mul(rows, rows)  u = ReduceSum<keepdims=0>(q)
  z = Mul(last, h)  v = ReduceSum<keepdims=0>(z)  l = Add(u, v) }}"""


def scanned(start: torch.Tensor, rows: list[torch.Tensor], w: torch.Tensor) -> torch.Tensor:
    state, total = start, start.sum() * 0
    for row in rows:
        state = torch.tanh(state * w + row)
        total = total + ((state * row) ** 2).sum()
    return total + (state * start * w).sum()


@pytest.mark.parametrize("opset", [9, 11, 21])
def test_states_slices_and_captured_values(opset: int) -> None:
    twice = Twice(SCAN, "start", "x", "w", opset=opset)
    for count in (0, 1, 4):
        x = RNG.normal(size=(count, 2))
        twice.agrees(lambda s, x, w: scanned(s, list(x), w), start=START, x=x, w=W)


@pytest.mark.parametrize("inward", [0, 1])
@pytest.mark.parametrize("outward", [0, 1])
def test_other_axes_and_directions(inward: int, outward: int) -> None:
    options = (
        f"num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [{inward}], "
        f"scan_output_axes = [-1], scan_output_directions = [{outward}],"
    )
    text = SCAN.replace("num_scan_inputs = 1,", options).replace("double[N,2]", "double[2,N]")
    text = text.replace("q = Mul(rows, rows)", "k = Mul(rows, x)  q = Mul(k, rows)")

    def expected(start: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        state, rows = start, []
        for row in x.unbind(1)[::-1] if inward else x.unbind(1):
            state = torch.tanh(state * w + row)
            rows.append(state * row)
        whole = torch.stack(rows[::-1] if outward else rows, 1)
        return (whole * x * whole).sum() + (state * start * w).sum()

    x = RNG.normal(size=(2, 3))
    Twice(text, "start", "x", "w").agrees(expected, start=START, x=x, w=W)


@pytest.mark.parametrize("axis", [0, -1])
def test_a_body_need_not_declare_the_shapes_of_its_inputs(axis: int) -> None:
    text = f"""(double[2] start, double[2,2] x) => (double l) {{
      last, rows = Scan (start, x) <num_scan_inputs = 1, scan_input_axes = [{axis}],
          body = b (double[] s, double[] r) => (double[] t, double[] o) {{
        a = MatMul(x, r)  c = Add(a, s)  t = Tanh(c)  o = MatMul(s, x) }}>
      q = Mul(rows, rows)  u = ReduceSum<keepdims=0>(q)
      v = ReduceSum<keepdims=0>(last)  l = Add(u, v) }}"""

    def expected(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total = x.sum() * 0
        for row in x.unbind(axis):
            total = total + ((state @ x) ** 2).sum()
            state = torch.tanh(x @ row + state)
        return total + state.sum()

    Twice(text, "start", "x").agrees(expected, start=START, x=RNG.normal(size=(2, 2)))


def test_only_the_state_matters() -> None:
    text = SCAN.replace("last, rows =", "last =").replace("q = Mul(rows, rows)", "q = Mul(h, h)")

    def expected(start: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        state = start
        for row in x:
            state = torch.tanh(state * w + row)
        return (state * start * w).sum() + ((start * w) ** 2).sum()

    x = RNG.normal(size=(3, 2))
    Twice(text, "start", "x", "w").agrees(expected, start=START, x=x, w=W)


def test_only_the_rows_matter_and_nothing_of_the_body_is_needed() -> None:
    text = """(double[N,2] x, double[M,2] y) => (double l) {
      n, rows = Scan (start, x, y) <num_scan_inputs = 2,
        body = b (int64 i, double[2] r, double[2] s) => (int64 j, double[2] o)
          { j = Add(i, i)  o = Sub(r, s) }>
      q = Mul(rows, rows)  l = ReduceSum<keepdims=0>(q) }"""
    text = text.replace("(double l) {", "(double l) <int64 start = {1}> {")
    x, y = RNG.normal(size=(3, 2)), RNG.normal(size=(3, 2))
    Twice(text, "x", "y").agrees(lambda x, y: ((x - y) ** 2).sum(), x=x, y=y)


def test_a_linear_state_needs_nothing_but_the_number_of_steps() -> None:
    text = """(double[2] start, double[N,2] x) => (double l) {
      last = Scan (start, x) <num_scan_inputs = 1,
        body = b (double[2] s, double[2] r) => (double[2] t) { t = Add(s, s) }>
      q = Mul(last, last)  l = ReduceSum<keepdims=0>(q) }"""
    twice = Twice(text, "start")
    twice.agrees(lambda s: ((8 * s) ** 2).sum(), start=START, x=np.zeros((3, 2)))


@pytest.mark.parametrize("direction", [0, 1])
def test_the_first_scan_has_a_batch_and_lengths(direction: int) -> None:
    text = f"""(int64[2] n, double[2,2] start, double[2,3,2] x, double[2] w) => (double l) {{
      last, rows = Scan (n, start, x) <num_scan_inputs = 1, directions = [{direction}],
        body = {BODY}>
      q = Mul(rows, rows)  u = ReduceSum<keepdims=0>(q)
      k = Mul(start, w)  z = Mul(last, k)  v = ReduceSum<keepdims=0>(z)  l = Add(u, v) }}"""
    twice = Twice(text, "start", "x", "w", opset=8)
    for lengths in ([3, 1], [2, 3]):

        def expected(
            start: torch.Tensor, x: torch.Tensor, w: torch.Tensor, n: list[int] = lengths
        ) -> torch.Tensor:
            parts = [list(x[i, : n[i]])[:: -1 if direction else 1] for i in (0, 1)]
            return scanned(start[0], parts[0], w) + scanned(start[1], parts[1], w)

        feeds = {"start": RNG.normal(size=(2, 2)), "x": RNG.normal(size=(2, 3, 2)), "w": W}
        twice.agrees(expected, n=np.array(lengths), **feeds)


def test_a_scan_in_a_loop_and_a_branch_in_a_scan(device: str) -> None:
    text = """(int64 m, double[2] start, double[N,2] x, double[2] w) => (double l) {
      y = Loop (m, , start) <body = c (int64 i, bool go, double[2] v) => (bool go_on, double[2] u) {
        go_on = Identity(go)
        u = Scan (v, x) <num_scan_inputs = 1, body = b (double[2] s, double[2] r)
            => (double[2] t) {
          zero = Constant<value = double {0.0}>()  f = ReduceSum<keepdims=0>(r)
          up = Less(zero, f)
          t = If (up) <then_branch = d () => (double[2] p) { p0 = Mul(s, r)  p = Sin(p0) },
                       else_branch = e () => (double[2] q) { q0 = Mul(s, w)  q = Add(q0, v) }> }>
      }>
      l = ReduceSum<keepdims=0>(y) }"""

    def expected(start: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        v = start
        for _ in range(2):
            s = v
            for row in x:
                s = torch.sin(s * row) if row.sum() > 0 else s * w + v
            v = s
        return v.sum()

    x = np.array([[1.0, 0.5], [-1.0, -0.2], [0.3, 0.4]])
    Twice(text, "start", "x", "w", device=device).agrees(expected, m=2, start=START, x=x, w=W)


def test_random_numbers_of_a_body_are_drawn_once() -> None:
    text = """(double[2,64] x) => (double[2,64] y) <double r = {0.5}, bool on = {1}> {
      y = Scan (x) <num_scan_inputs = 1, body = b (double[64] v) => (double[64] u)
        { m = Dropout(v, r, on)  n = RandomNormalLike(v)  u = Mul(m, n) }> }"""
    found = run(differentiated(text), x=np.ones((2, 64)), d_y=np.ones((2, 64)))
    assert 0 < np.count_nonzero(found["y"]) < 128
    np.testing.assert_array_equal(found["x_grad"], found["y"])


LOOPS = """(double[2] start, double[{shape}] x, double[2] w) => (double l) {{
  last, rows = Scan (start, x) <num_scan_inputs = 1, {options} body = b
      (double[2] s, double[2] r) => (double[2] t, double[2] o) {{
    k = Constant<value = int64 {{2}}>()
    t = Loop (k, , s) <body = c (int64 i, bool go, double[2] p) => (bool go_on, double[2] q) {{
      go_on = Identity(go)  m = Mul(p, w)  n = Add(m, r)  q = Sin(n) }}>
    o = Mul(t, r) }}>
  k = Mul(rows, x)  u = ReduceSum<keepdims=0>(k)
  v = ReduceSum<keepdims=0>(last)  l = Add(u, v) }}"""


def test_a_loop_in_the_body_on_other_axes_and_backwards() -> None:
    options = (
        "scan_input_axes = [1], scan_input_directions = [1], "
        "scan_output_axes = [-1], scan_output_directions = [1],"
    )

    def expected(start: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        state, rows = start, []
        for row in x.unbind(1)[::-1]:
            for _ in range(2):
                state = torch.sin(state * w + row)
            rows.append(state * row)
        return (torch.stack(rows[::-1], 1) * x).sum() + state.sum()

    twice = Twice(LOOPS.format(shape="2,N", options=options), "start", "x", "w")
    for count in (1, 3):
        twice.agrees(expected, start=START, x=RNG.normal(size=(2, count)), w=W)


def test_a_loop_in_the_body_of_a_scan_without_steps() -> None:
    agrees_once(
        LOOPS.format(shape="N,2", options=""),
        ["start", "x", "w"],
        lambda start, x, w: start.sum() + x.sum(),
        start=START,
        x=np.zeros((0, 2)),
        w=W,
    )


def test_scans_in_scans_with_a_loop_that_runs_longer_each_time() -> None:
    text = """(double[N,2,2] x, double[2] w) => (double l) {
      rows = Scan (x) <num_scan_inputs = 1, body = b (double[2,2] v) => (double[2] u) {
        zero = Constant<value = int64 {0}>()  none = Constant<value = double[2] {0.0, 0.0}>()
        c, u = Scan (zero, none, v) <num_scan_inputs = 1, body = d
            (int64 n, double[2] s, double[2] r) => (int64 m, double[2] t) {
          one = Constant<value = int64 {1}>()  m = Add(n, one)
          t = Loop (m, , r) <body = e (int64 i, bool go, double[2] p)
              => (bool go_on, double[2] q) {
            go_on = Identity(go)  a = Mul(p, w)  g = Add(a, s)  q = Sin(g) }> }> }>
      y = Mul(rows, rows)  l = ReduceSum<keepdims=0>(y) }"""

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        loss = torch.zeros((), dtype=torch.float64)
        for v in x:
            s = torch.zeros(2, dtype=torch.float64)
            for count, row in enumerate(v, 1):
                p = row
                for _ in range(count):
                    p = torch.sin(p * w + s)
                s = p
            loss = loss + (s * s).sum()
        return loss

    agrees_once(text, ["x", "w"], expected, x=RNG.normal(size=(3, 2, 2)), w=W)


def test_steps_may_take_different_branches() -> None:
    text = """(double[N,2] start, double[M,N] x, double[2,2] w) => (double l) {
      last = Scan (start, x) <num_scan_inputs = 1, body = b (double[N,2] s, double[N] v)
          => (double[N,2] t) {
        total = ReduceSum<keepdims=0>(v)  zero = Constant<value = double {0.0}>()
        c = Less(zero, total)
        t = If (c) <
          then_branch = y () => (double[N,2] a) { p = MatMul(s, w)  q = Tanh(p)  a = Mul(q, p) },
          else_branch = z () => (double[N,2] e) { g = Exp(s)  e = Mul(g, s) }> }>
      q = Mul(last, last)  l = ReduceSum<keepdims=0>(q) }"""

    def expected(start: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        up, down = (lambda s: torch.tanh(s @ w) * (s @ w)), (lambda s: torch.exp(s) * s)
        return (up(down(up(start))) ** 2).sum()

    start, x = RNG.normal(size=(3, 2)) / 4, np.array([[1.0] * 3, [-1.0] * 3, [2.0] * 3])
    agrees_once(text, ["start", "w"], expected, start=start, x=x, w=np.stack([W, -W]))


def test_old_scans_cannot_keep_sequences(weigh: None) -> None:
    text = """(double[N,2] x) => (double l) {
      rows = Scan (x) <num_scan_inputs = 1, body = b (double[2] v) => (double[2] u) {
        s = SequenceConstruct(v, v)  u = own.domain.Weigh(s, v) }>
      l = ReduceSum<keepdims=0>(rows) }"""
    with pytest.raises(NoGradientError, match=r"keep the seq\(tensor\(double\)\).*\n.*opset 13"):
        build_gradient_graph(proto(text, 11, own_domain=1), "x", loss="l")
