"""Gradients of If: the branch that ran, captured values, and what is kept of it."""

import numpy as np
import pytest
import torch

from gradients.against import Twice
from gradients.emit import differentiated, run
from graph.text import model, values
from onnxtrain.errors import NoGradientError
from onnxtrain.gradients.engine import backward
from onnxtrain.graph.prepare import prepare

X, W = np.array([1.0, 2.0, -1.0]), np.array([0.5, -1.0, 2.0])


@pytest.mark.parametrize("opset", [8, 11, 21])
def test_each_branch_gives_the_gradients_of_what_it_captures(opset: int) -> None:
    text = """(bool c, double[3] x, double[3] w) => (double l) {
      h = Mul(x, w)
      y = If (c) <then_branch = t () => (double[3] a) { p = Tanh(h) q = Mul(p, x) a = Mul(q, q) },
                  else_branch = e () => (double[3] b) { g = Exp(w) b = Mul(g, h) }>
      z = Add(y, h)  l = ReduceSum<keepdims=0>(z) }"""
    twice = Twice(text, "x", "w", opset=opset)
    twice.agrees(lambda x, w: ((torch.tanh(x * w) * x) ** 2 + x * w).sum(), c=True, x=X, w=W)
    twice.agrees(lambda x, w: (torch.exp(w) * x * w + x * w).sum(), c=False, x=X, w=W)


def test_branches_may_differ_in_shape() -> None:
    text = """(bool c, double[3] x) => (double l) {
      y = If (c) <then_branch = t () => (double[6] a) { p = Concat<axis=0>(x, x) a = Mul(p, p) },
                  else_branch = e () => (double[3] b) { b = Sin(x) }>
      z = Exp(y)  l = ReduceSum<keepdims=0>(z) }"""
    twice = Twice(text, "x")
    twice.agrees(lambda x: 2 * torch.exp(x * x).sum(), c=True, x=X)
    twice.agrees(lambda x: torch.exp(torch.sin(x)).sum(), c=False, x=X)


def test_a_branch_that_is_constant_gives_zeros() -> None:
    text = """(bool c, double[3] x) => (double l) {
      y = If (c) <then_branch = t () => (double[3] a) { a = Identity(x) },
                  else_branch = e () => (double[3] k) <double[3] k = {1.0, 2.0, 3.0}> { }>
      z = Mul(y, y)  l = ReduceSum<keepdims=0>(z) }"""
    twice = Twice(text, "x")
    twice.agrees(lambda x: (x * x).sum(), c=True, x=X)
    twice.agrees(lambda x: 14 + 0 * (x * x).sum(), c=False, x=X)


def test_constants_of_a_branch_serve_both_passes() -> None:
    text = """(bool c, double[3] x) => (double l) {
      y = If (c) <then_branch = t () => (double[3] a) <double[3] k = {1.0, 2.0, 3.0}>
                    { p = Mul(x, k) a = Mul(p, x) },
                  else_branch = e () => (double[3] b) { b = Neg(x) }>
      l = ReduceSum<keepdims=0>(y) }"""
    k = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    twice = Twice(text, "x")
    twice.agrees(lambda x: (x * x * k).sum(), c=True, x=X)
    twice.agrees(lambda x: -x.sum(), c=False, x=X)


def test_a_gradient_of_one_output_only() -> None:
    text = """(bool c, double[3] x) => (double l) {
      y, z, n = If (c) <
        then_branch = t () => (double[3] a, double[3] d, int64 i)
          { a = Mul(x, x) d = Neg(x) i = Size(x) },
        else_branch = e () => (double[3] b, double[3] f, int64 j)
          { b = Sin(x) f = Abs(x) j = Size(b) }>
      l = ReduceSum<keepdims=0>(y) }"""
    Twice(text, "x").agrees(lambda x: (x * x).sum(), c=True, x=X)


@pytest.mark.parametrize("opset", [9, 12, 21])
def test_iterations_may_take_different_branches(opset: int) -> None:
    text = """(double[N,2] x, double[2,2] w) => (double l) <int64 m = {3}, int64 one = {1}> {
      y = Loop (m, , x) <body = b (int64 i, bool go, double[N,2] s) => (bool on, double[N,2] t) {
        on = Identity(go)  c = Equal(i, one)  p = MatMul(s, w)
        t = If (c) <then_branch = u () => (double[N,2] a) { h = Tanh(p) a = Mul(h, p) },
                    else_branch = e () => (double[N,2] d) { g = Exp(s) d = Mul(g, p) }> }>
      q = Mul(y, y)  l = ReduceSum<keepdims=0>(q) }"""

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def other(s: torch.Tensor) -> torch.Tensor:
            return torch.exp(s) * (s @ w)

        p = other(x) @ w
        return (other(torch.tanh(p) * p) ** 2).sum()

    x, w = np.array([[0.3, -0.5], [0.2, 0.1], [-0.4, 0.6]]), np.array([[0.5, -0.3], [0.2, 0.4]])
    Twice(text, "x", "w", opset=opset).agrees(expected, x=x, w=w)


def test_branches_inside_branches(device: str) -> None:
    text = """(bool c, bool d, double[3] x, double[3] w) => (double l) {
      y = If (c) <
        then_branch = t () => (double[3] a) {
          p = Mul(x, w)
          q = If (d) <then_branch = tt () => (double[3] aa) { pp = Sin(p) aa = Mul(pp, w) },
                      else_branch = te () => (double[3] ab) { ab = Exp(p) }>
          a = Mul(q, p) },
        else_branch = e () => (double[3] b) { b = Neg(x) }>
      l = ReduceSum<keepdims=0>(y) }"""
    twice = Twice(text, "x", "w", device=device)
    feeds = {"x": X, "w": W}
    twice.agrees(lambda x, w: (torch.sin(x * w) * w * x * w).sum(), c=True, d=True, **feeds)
    twice.agrees(lambda x, w: (torch.exp(x * w) * x * w).sum(), c=True, d=False, **feeds)
    twice.agrees(lambda x, w: -x.sum(), c=False, d=True, **feeds)


def test_random_numbers_of_a_branch_are_drawn_once() -> None:
    text = """(bool c, double[64] x) => (double[64] y) <double r = {0.5}, bool on = {1}> {
      y = If (c) <then_branch = t () => (double[64] a)
                    { m = Dropout(x, r, on) n = RandomNormalLike(x) a = Mul(m, n) },
                  else_branch = e () => (double[64] b) { b = Neg(x) }> }"""
    found = run(differentiated(text), c=True, x=np.ones(64), d_y=np.ones(64))
    assert 0 < np.count_nonzero(found["y"]) < 64
    np.testing.assert_array_equal(found["x_grad"], found["y"])


def test_operators_of_branches_without_a_rule_are_named_with_the_others() -> None:
    text = """(bool c, float[3] x) => (float[3] y) {
      z = own.domain.Odd(x)
      y = If (c) <then_branch = t () => (float[3] a) { a = own.domain.Even(z) },
                  else_branch = e () => (float[3] b) { b = Neg(z) }> }"""
    of = prepare(model(text, own_domain=1))
    found = values(of)
    found["z"].type = found["y"].type
    with pytest.raises(NoGradientError, match=r"own\.domain::Even: node 'Even_a'"):
        backward(of.graph, [found["x"]], {found["y"]: found["x"]})


def test_names_are_unique_over_all_levels() -> None:
    text = """(bool c, double[3] x) => (double l) {
      y = If (c) <then_branch = t () => (double[3] a) { a = Mul(x, x) },
                  else_branch = e () => (double[3] b) { b = Mul(x, x) }>
      z = If (c) <then_branch = t2 () => (double[3] a) { a = Mul(y, x) },
                  else_branch = e2 () => (double[3] b) { b = Mul(y, y) }>
      l = ReduceSum<keepdims=0>(z) }"""
    of = differentiated(text)
    names = [v.name for node in of.graph.all_nodes() for v in node.outputs if v.name]
    nodes = [node.name for node in of.graph.all_nodes()]
    assert len(set(names)) == len(names) and len(set(nodes)) == len(nodes)


@pytest.mark.parametrize("opset", [13, 14])
def test_a_branch_keeps_whole_numbers_of_a_loop_inside(opset: int) -> None:
    text = """(bool c, int64 m, double[3] x) => (double l) {
      y = If (c) <
        then_branch = t () => (double[3] a) {
          a = Loop (m, , x) <body = b (int64 i, bool on, double[3] v) => (bool go, double[3] u) {
            go = Identity(on)  k = Add(i, m)  w = Gather(x, i)  z = Gather(v, i)
            h = Mul(w, z)  u = Add(v, h) }> },
        else_branch = e () => (double[3] o) { o = Neg(x) }>
      l = ReduceSum<keepdims=0>(y) }"""

    def expected(x: torch.Tensor) -> torch.Tensor:
        v = x
        for i in range(2):
            v = v + x[i] * v[i]
        return v.sum()

    twice = Twice(text, "x", opset=opset)
    twice.agrees(expected, c=True, m=2, x=np.array([1.0, 0.5, -1.0]))
    twice.agrees(lambda x: -x.sum(), c=False, m=2, x=np.array([1.0, 0.5, -1.0]))
