"""Gradients of Loop: any number of iterations, carried and captured values, nesting, sequences."""

import numpy as np
import onnx
import pytest
import torch

from gradients.against import Twice
from gradients.emit import differentiated, run
from graph.text import proto
from onnxtrain.errors import NoGradientError
from onnxtrain.gradients import build_gradient_graph

X, W = np.array([1.0, 0.5, -1.0]), np.array([0.5, -1.0, 1.2])

ROWS = """(int64 m, double[3] x, double[3] w) => (double l) {
  h = Mul(x, w)
  y, r = Loop (m, , x) <body = b (int64 i, bool go, double[3] v)
      => (bool go_on, double[3] u, double[3] row) {
    go_on = Identity(go)  f = Cast<to=11>(i)  p = Mul(v, w)  q = Add(p, f)  u = Tanh(q)
    row = Mul(u, h) }>
  s = ReduceSum<keepdims=0>(r)  z = Add(y, h)  t = ReduceSum<keepdims=0>(z)  l = Add(s, t) }"""


@pytest.mark.parametrize("opset", [8, 11, 13, 21])
def test_carried_captured_and_stacked_values(opset: int) -> None:
    twice = Twice(ROWS, "x", "w", opset=opset)
    for count in (0, 1, 4):

        def expected(x: torch.Tensor, w: torch.Tensor, count: int = count) -> torch.Tensor:
            v, total = x, x.sum() * 0
            for i in range(count):
                v = torch.tanh(v * w + i)
                total = total + (v * x * w).sum()
            return total + (v + x * w).sum()

        twice.agrees(expected, m=count, x=X, w=W)


@pytest.mark.parametrize("opset", [11, 21])
def test_an_early_exit_ends_the_backward_pass_too(opset: int) -> None:
    text = """(double[3] x) => (double l) {
      y = Loop (, , x) <body = b (int64 i, bool go, double[3] v) => (bool go_on, double[3] u) {
        u = Mul(v, v)  big = ReduceMax<keepdims=0>(u)  ten = Constant<value = double {10.0}>()
        go_on = Less(big, ten) }>
      l = ReduceSum<keepdims=0>(y) }"""
    Twice(text, "x", opset=opset).agrees(lambda x: (x**8).sum(), x=np.array([1.5, 1.1, 0.3]))


def test_a_loop_that_may_not_start_passes_gradients_through() -> None:
    text = ROWS.replace("int64 m,", "int64 m, bool c,").replace("(m, , x)", "(m, c, x)")
    Twice(text, "x", "w").agrees(lambda x, w: (x + x * w).sum(), m=3, c=False, x=X, w=W)


def test_carried_values_may_swap_stay_or_be_whole_numbers() -> None:
    text = """(int64 m, double[3] x, double[3] w) => (double l) {
      one = Constant<value = int64 {1}>()
      a, b, k, n = Loop (m, , x, w, x, one) <body = b
          (int64 i, bool go, double[3] v, double[3] u, double[3] s, int64 c)
          => (bool go_on, double[3] u, double[3] vs, double[3] s, int64 d) {
        go_on = Identity(go)  vs = Mul(v, s)  d = Add(c, c) }>
      f = Cast<to=11>(n)  p = Mul(a, b)  q = Mul(p, k)  o = Mul(q, f)
      l = ReduceSum<keepdims=0>(o) }"""

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        v, u, n = x, w, 1
        for _ in range(3):
            v, u, n = u, v * x, n + n
        return (v * u * x * n).sum()

    Twice(text, "x", "w").agrees(expected, m=3, x=X, w=W)


def test_a_value_may_be_carried_and_captured_at_once() -> None:
    text = """(int64 m, double[3] x) => (double l) {
      y = Loop (m, , x) <body = b (int64 i, bool go, double[3] v) => (bool go_on, double[3] u) {
        go_on = Identity(go)  u = Mul(v, x) }>
      l = ReduceSum<keepdims=0>(y) }"""
    Twice(text, "x").agrees(lambda x: (x**4).sum(), m=3, x=X)


def test_a_carried_value_may_only_reach_the_result_through_others() -> None:
    text = """(int64 m, double[3] x, double[3] w) => (double l) {
      a, b = Loop (m, , x, w) <body = b (int64 i, bool go, double[3] v, double[3] u)
          => (bool go_on, double[3] vu, double[3] uu) {
        go_on = Identity(go)  vu = Mul(v, u)  uu = Sin(u) }>
      l = ReduceSum<keepdims=0>(a) }"""

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        v, u = x, w
        for _ in range(3):
            v, u = v * u, torch.sin(u)
        return v.sum()

    Twice(text, "x", "w").agrees(expected, m=3, x=X, w=W)


def test_a_path_that_a_rounding_cuts_gives_zeros() -> None:
    text = """(int64 m, double[3] x, double[3] w) => (double l) {
      a, b = Loop (m, , x, w) <body = b (int64 i, bool go, double[3] v, double[3] u)
          => (bool go_on, double[3] vu, double[3] uu) {
        go_on = Identity(go)  k = Round(u)  vu = Mul(v, k)  uu = Identity(u) }>
      l = ReduceSum<keepdims=0>(a) }"""
    twice = Twice(text, "x", "w")
    twice.agrees(lambda x, w: (x * torch.round(w.detach()) ** 2).sum(), m=2, x=X, w=W)


def test_shapes_may_change_from_one_iteration_to_the_next(device: str) -> None:
    text = """(int64 m, double[N] x) => (double l) {
      y = Loop (m, , x) <body = b (int64 i, bool go, double[K] v) => (bool go_on, double[L] u) {
        go_on = Identity(go)  s = Sin(v)  u = Concat<axis=0>(v, s) }>
      z = Mul(y, y)  l = ReduceSum<keepdims=0>(z) }"""

    def expected(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.cat([x, torch.sin(x)])
        return (x * x).sum()

    Twice(text, "x", device=device).agrees(expected, m=3, x=X)


def test_a_loop_in_a_branch_in_a_loop_sees_all_outer_scopes(device: str) -> None:
    text = """(int64 m, double[3] x, double[3] w) => (double l) {
      y, rows = Loop (m, , x) <body = b (int64 i, bool go, double[3] v)
          => (bool go_on, double[3] u, double[3] row) {
        go_on = Identity(go)  one = Constant<value = int64 {1}>()  late = Less(one, i)
        k = Mul(v, w)
        u = If (late) <
          then_branch = t () => (double[3] a) {
            a = Loop (i, , v) <body = c (int64 j, bool on, double[3] p)
                => (bool on_on, double[3] q) {
              on_on = Identity(on)  f = Cast<to=11>(j)  g = Mul(p, k)  o = Add(g, w)
              r = Add(o, f)  q = Sin(r) }> },
          else_branch = e () => (double[3] b2) { b2 = Mul(k, x) }>
        row = Mul(u, k) }>
      s = ReduceSum<keepdims=0>(rows)  t = ReduceSum<keepdims=0>(y)  l = Add(s, t) }"""

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        v, total = x, x.sum() * 0
        for i in range(4):
            k = v * w
            if i > 1:
                u = v
                for j in range(i):
                    u = torch.sin(u * k + w + j)
            else:
                u = k * x
            total = total + (u * k).sum()
            v = u
        return total + v.sum()

    Twice(text, "x", "w", device=device).agrees(expected, m=4, x=X, w=W)


def test_loops_of_opset_11_may_be_nested() -> None:
    text = """(int64 m, double[3] x) => (double l) {
      y = Loop (m, , x) <body = b (int64 i, bool go, double[3] v) => (bool go_on, double[3] u) {
        go_on = Identity(go)
        u = Loop (m, , v) <body = c (int64 j, bool on, double[3] p) => (bool on_on, double[3] q) {
          on_on = Identity(on)  o = Mul(p, x)  q = Sin(o) }> }>
      l = ReduceSum<keepdims=0>(y) }"""

    def expected(x: torch.Tensor) -> torch.Tensor:
        v = x
        for _ in range(4):
            v = torch.sin(v * x)
        return v.sum()

    Twice(text, "x", opset=11).agrees(expected, m=2, x=X)


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_a_pool_in_a_body_knows_the_sizes_of_what_it_pooled(pool: str) -> None:
    text = f"""(int64 m, double[1] x, double[1,1,4] w) => (double[1] l) {{
      y = Loop (m, , x) <body = b (int64 i, bool go, double[1] v) => (bool go_on, double[1] u) {{
        go_on = Identity(go)  p = {pool}<kernel_shape=[3]>(w)
        q = ReduceProd<keepdims=0>(p)  u = Mul(v, q) }}>
      l = Identity(y) }}"""

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        of = torch.nn.functional
        pooled = of.max_pool1d(w, 3, 1) if pool == "MaxPool" else of.avg_pool1d(w, 3, 1)
        return (x * pooled.prod() ** 2).sum()

    w = np.array([[[0.5, 1.5, -1.0, 2.0]]])
    for opset in (15, 21):
        Twice(text, "x", "w", opset=opset).agrees(expected, m=2, x=np.array([1.2]), w=w)


def test_sequences_go_round() -> None:
    text = """(int64 m, double[3] x) => (double l) {
      none = SequenceEmpty <dtype = 11> ()
      y, s = Loop (m, , x, none) <body = b (int64 i, bool go, double[3] v, seq(double[3]) a)
          => (bool go_on, double[3] u, seq(double[3]) c) {
        go_on = Identity(go)  u = Sin(v)  uv = Mul(u, v)  c = SequenceInsert(a, uv) }>
      zero = Constant<value = int64 {0}>()
      all = ConcatFromSequence<axis=0>(s)  first = SequenceAt(s, zero)
      p = Mul(all, all)  q = ReduceSum<keepdims=0>(p)  r = Mul(first, y)
      t = ReduceSum<keepdims=0>(r)  l = Add(q, t) }"""

    def expected(x: torch.Tensor) -> torch.Tensor:
        v, made = x, []
        for _ in range(3):
            u = torch.sin(v)
            made.append(u * v)
            v = u
        return (torch.cat(made) ** 2).sum() + (made[0] * v).sum()

    Twice(text, "x").agrees(expected, m=3, x=X)


def test_elements_of_a_captured_and_of_a_carried_sequence(device: str) -> None:
    text = """(double[4,3] x, double[3] w) => (double l) {
      four = Constant<value = int64 {4}>()
      s = SplitToSequence<axis=0, keepdims=0>(x)
      y, left = Loop (four, , w, s) <body = b (int64 i, bool go, double[3] v, seq(double[3]) a)
          => (bool go_on, double[3] u, seq(double[3]) c) {
        go_on = Identity(go)  zero = Constant<value = int64 {0}>()
        e = SequenceAt(s, i)  f = SequenceAt(a, zero)  c = SequenceErase(a, zero)
        g = Mul(e, f)  h = Mul(g, v)  u = Sin(h) }>
      l = ReduceSum<keepdims=0>(y) }"""

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for row in x:
            w = torch.sin(row * row * w)
        return w.sum()

    x = np.random.default_rng(1).normal(size=(4, 3))
    Twice(text, "x", "w", device=device).agrees(expected, x=x, w=W)


def test_random_numbers_of_a_body_are_drawn_once() -> None:
    text = """(double[64] x) => (double[64] y) <double r = {0.5}, bool on = {1}> {
      two = Constant<value = int64 {2}>()
      y = Loop (two, , x) <body = b (int64 i, bool go, double[64] v) => (bool go_on, double[64] u) {
        go_on = Identity(go)  m = Dropout(v, r, on)  n = RandomNormalLike(v)  u = Mul(m, n) }> }"""
    found = run(differentiated(text), x=np.ones(64), d_y=np.ones(64))
    assert 0 < np.count_nonzero(found["y"]) < 40
    np.testing.assert_allclose(found["x_grad"], found["y"])


def test_the_gradient_of_the_output_of_a_loop_keeps_its_name() -> None:
    of = build_gradient_graph(proto(ROWS), ["y", "x"], loss="l")
    onnx.checker.check_model(of)
    assert [value.name for value in of.graph.output] == ["l", "y_grad", "x_grad"]


def test_outputs_that_nobody_names_are_no_obstacle() -> None:
    text = ROWS.replace("y, r = Loop", ", r = Loop").replace("Add(y, h)", "Add(h, h)")

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        v, total = x, (2 * x * w).sum()
        for i in range(2):
            v = torch.tanh(v * w + i)
            total = total + (v * x * w).sum()
        return total

    Twice(text, "x", "w").agrees(expected, m=2, x=X, w=W)


def test_sequences_inside_the_body_of_an_old_loop() -> None:
    text = """(int64 m, double[3] x) => (double l) {
      y = Loop (m, , x) <body = b (int64 i, bool go, double[3] v) => (bool go_on, double[3] u) {
        go_on = Identity(go)  a = Sin(v)  s = SequenceConstruct(a, v)
        one = Constant<value = int64 {1}>()  f = SequenceAt(s, one)  e = SequenceErase(s, one)
        c = ConcatFromSequence<axis=0>(e)  u = Mul(c, f) }>
      l = ReduceSum<keepdims=0>(y) }"""

    def expected(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.sin(x) * x
        return x.sum()

    Twice(text, "x", opset=11).agrees(expected, m=3, x=X)


def test_old_loops_cannot_keep_sequences(weigh: None) -> None:
    text = """(int64 m, double[3] x) => (double[3] y) {
      y = Loop (m, , x) <body = b (int64 i, bool go, double[3] v) => (bool go_on, double[3] u) {
        go_on = Identity(go)  s = SequenceConstruct(v, v)  u = own.domain.Weigh(s, v) }> }"""
    with pytest.raises(NoGradientError, match=r"keep the seq\(tensor\(double\)\).*\n.*opset 13"):
        build_gradient_graph(proto(text, 11, own_domain=1), "x", "y")
    kept = build_gradient_graph(proto(text, 13, own_domain=1), "x", "y")
    assert any(node.op_type == "SequenceConcat" for node in _nodes(kept.graph))


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [attribute.g for node in graph.node for attribute in node.attribute]
    return [*graph.node, *(node for one in inner for node in _nodes(one))]
