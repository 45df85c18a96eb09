"""Gradients of sequences and optionals."""

import numpy as np
import onnx
import pytest
import torch

from gradients.against import Twice
from gradients.emit import differentiated, run
from graph.text import proto
from onnxtrain.gradients import build_gradient_graph
from onnxtrain.runtime.session import InferenceSession

RNG = np.random.default_rng(0)
X, W = RNG.normal(size=(5, 3)), RNG.normal(size=(2, 3))
SUM = "p = Mul(y, y)  q = Mul(p, y)  l = ReduceSum<keepdims=0>(q)"


def cubes(y: torch.Tensor) -> torch.Tensor:
    return (y**3).sum()


@pytest.mark.parametrize("opset", [11, 21])
def test_construct_and_join(opset: int) -> None:
    text = f"""(double[5,3] x, double[2,3] w) => (double l) {{
      a = Sin(x)  s = SequenceConstruct(a, w, x)  y = ConcatFromSequence<axis=0>(s)  {SUM} }}"""
    twice = Twice(text, "x", "w", opset=opset)
    twice.agrees(lambda x, w: cubes(torch.cat([torch.sin(x), w, x])), x=X, w=W)


@pytest.mark.parametrize("axis", [0, -1])
def test_join_along_a_new_axis(axis: int) -> None:
    text = f"""(double[5,3] x) => (double l) {{
      a = Sin(x)  s = SequenceConstruct(a, x)
      y0 = ConcatFromSequence<axis={axis}, new_axis=1>(s)  y = CumSum(y0, z)  {SUM} }}"""
    text = text.replace("(double l) {", "(double l) <int64 z = {0}> {")
    Twice(text, "x").agrees(lambda x: cubes(torch.stack([torch.sin(x), x], axis).cumsum(0)), x=X)


@pytest.mark.parametrize("at", [0, 1, 2, -1, -3])
def test_one_element(at: int) -> None:
    text = f"""(double[5,3] x, double[2,3] w, int64 at) => (double l) {{
      a = Sin(x)  s = SequenceConstruct(a, w, x)  y = SequenceAt(s, at)  {SUM} }}"""
    Twice(text, "x", "w").agrees(lambda x, w: cubes([torch.sin(x), w, x][at]), x=X, w=W, at=at)


@pytest.mark.parametrize(
    ("at", "known"), [(0, 0), (2, 0), (-1, 0), (-2, 0), (1, 1), (-1, 1), (None, 1)]
)
def test_insert(at: int | None, known: int) -> None:
    text = f"""(double[5,3] x, double[2,3] w, int64 at) => (double l) {{
      a = Sin(x)  s = SequenceConstruct(a, x)  t = SequenceInsert(s, w, at)
      one = Constant<value = int64 {{1}}>()  e = SequenceAt(t, one)  k = ReduceMean<keepdims=0>(e)
      y0 = ConcatFromSequence<axis=0>(t)  y = Mul(y0, k)  {SUM} }}"""
    if at is None:
        text = text.replace("(s, w, at)", "(s, w)")
    elif known:
        text = text.replace(
            ", int64 at) => (double l) {", f") => (double l) <int64 at = {{{at}}}> {{"
        )

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        items = [torch.sin(x), x]
        items.insert(len(items) if at is None else at, w)
        return cubes(torch.cat(items) * items[1].mean())

    Twice(text, "x", "w").agrees(expected, x=X, w=W, at=at or 0)


@pytest.mark.parametrize(
    ("at", "known"), [(0, 0), (2, 0), (-1, 0), (-2, 0), (1, 1), (-1, 1), (None, 1)]
)
def test_erase(at: int | None, known: int) -> None:
    text = f"""(double[5,3] x, double[2,3] w, int64 at) => (double l) {{
      a = Sin(x)  s = SequenceConstruct(a, w, x)  t = SequenceErase(s, at)
      y = ConcatFromSequence<axis=0>(t)  {SUM} }}"""
    if at is None:
        text = text.replace("(s, at)", "(s)")
    elif known:
        text = text.replace(
            ", int64 at) => (double l) {", f") => (double l) <int64 at = {{{at}}}> {{"
        )

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        items = [torch.sin(x), w, x]
        del items[-1 if at is None else at]
        return cubes(torch.cat(items))

    Twice(text, "x", "w").agrees(expected, x=X, w=W, at=at or 0)


SPLITS = {
    "(x)": 0,
    "<axis=-1, keepdims=0>(x)": 1,
    "(x, two)": 0,
    "<axis=1>(x, sizes)": 1,
}


@pytest.mark.parametrize("call", SPLITS)
def test_split(call: str) -> None:
    text = f"""(double[5,3] x) => (double l) <int64 two = {{2}}, int64[2] sizes = {{1, 2}}> {{
      s = SplitToSequence{call}  one = Constant<value = int64 {{1}}>()  e = SequenceAt(s, one)
      m = ReduceMean<keepdims=0>(e)  t = SequenceErase(s, one)
      z = Constant<value = int64 {{0}}>()  f = SequenceAt(t, z)  y = Mul(f, m)  {SUM} }}"""
    pieces = {
        "(x)": lambda x: x.split(1),
        "<axis=-1, keepdims=0>(x)": lambda x: x.unbind(1),
        "(x, two)": lambda x: x.split(2),
        "<axis=1>(x, sizes)": lambda x: x.split([1, 2], 1),
    }[call]
    Twice(text, "x").agrees(lambda x: cubes(pieces(x)[0] * pieces(x)[1].mean()), x=X)


def test_a_sequence_that_is_used_twice(device: str) -> None:
    text = f"""(double[5,3] x, double[5,3] w) => (double l) {{
      s = SequenceConstruct(x, w)  i = Identity(s)
      a = ConcatFromSequence<axis=0>(s)  b = ConcatFromSequence<axis=0>(i)
      one = Constant<value = int64 {{1}}>()  e = SequenceAt(s, one)  f = SequenceAt(i, one)
      n = SequenceLength(s)  k = Cast<to=11>(n)
      g = Mul(e, f)  h = Concat<axis=0>(g, g)  c = Mul(a, b)  d = Mul(c, h)
      y = Mul(d, k)  {SUM} }}"""

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return cubes(torch.cat([x, w]) ** 2 * torch.cat([w, w]) ** 2 * 2)

    Twice(text, "x", "w", device=device).agrees(expected, x=X, w=X[::-1].copy())


def test_map(device: str) -> None:
    text = f"""(double[5,3] x, double[2,3] w) => (double l) {{
      s = SequenceConstruct(w, w)  r = SplitToSequence(x, two)
      t = SequenceMap (s, r, x) <body = b (double[2,3] a, double[K,3] c, double[5,3] d)
          => (double[L,3] e) {{ f = Concat<axis=0>(a, c, d)  e = Sin(f) }}>
      y = ConcatFromSequence<axis=0>(t)  {SUM} }}"""
    text = text.replace("(double l) {", "(double l) <int64[2] two = {2, 3}> {")

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return cubes(torch.cat([torch.sin(torch.cat([w, r, x])) for r in x.split([2, 3])]))

    Twice(text, "x", "w", device=device).agrees(expected, x=X, w=W)


def test_sequences_of_a_branch() -> None:
    text = f"""(bool c, double[5,3] x) => (double l) {{
      s = If (c) <then_branch = t () => (seq(double[N,3]) a)
                    {{ p = Sin(x) a = SequenceConstruct(p, x) }},
                  else_branch = e () => (seq(double[N,3]) b) {{ b = SplitToSequence(x) }}>
      y = ConcatFromSequence<axis=0>(s)  {SUM} }}"""
    twice = Twice(text, "x")
    twice.agrees(lambda x: cubes(torch.cat([torch.sin(x), x])), c=True, x=X)
    twice.agrees(cubes, c=False, x=X)


def test_an_optional() -> None:
    text = f"""(double[5,3] x) => (double l) {{
      a = Sin(x)  o = Optional(a)  h = OptionalHasElement(o)  k = Cast<to=11>(h)
      b = OptionalGetElement(o)  c = OptionalGetElement(o)  d = Mul(b, c)
      y = Mul(d, k)  {SUM} }}"""
    Twice(text, "x", opset=18).agrees(lambda x: cubes(torch.sin(x) ** 2), x=X)


def test_an_optional_sequence() -> None:
    text = f"""(double[5,3] x) => (double l) {{
      s = SequenceConstruct(x, x)  o = Optional(s)  t = OptionalGetElement(o)
      u = OptionalGetElement(t)  y = ConcatFromSequence<axis=0>(u)  {SUM} }}"""
    Twice(text, "x", opset=18).agrees(lambda x: 2 * cubes(x), x=X)


def test_an_empty_sequence_has_empty_gradients() -> None:
    text = """(double[N,3] x, double w) => (double l) {
      s = SplitToSequence(x)  n = SequenceLength(s)  k = Cast<to=11>(n)
      i = Constant<value = int64 {0}>()
      t = SequenceInsert(s, w)  e = SequenceAt(t, i)  f = ReduceSum<keepdims=0>(e)
      g = Mul(f, w)  l = Add(g, k) }"""
    of = build_gradient_graph(proto(text), ["x", "w"], loss="l")
    onnx.checker.check_model(of)
    _, dx, dw = InferenceSession(of).run(None, {"x": np.zeros((0, 3)), "w": np.array(3.0)})
    assert dx.shape == (0, 3) and dw == 6


def test_whole_numbers_in_sequences_have_no_gradient() -> None:
    text = """(double[5,3] x, int64[2] n) => (double[2,3] y) {
      s = SequenceConstruct(n, n)  z = Constant<value = int64 {0}>()  i = SequenceAt(s, z)
      y = Gather(x, i) }"""
    found = run(differentiated(text, "x"), x=X, n=np.array([1, 1]), d_y=np.ones((2, 3)))
    assert found["x_grad"].sum(1).tolist() == [0, 6, 0, 0, 0]
