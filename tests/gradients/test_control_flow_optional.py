"""Gradients of bodies whose optionals are needed again on the way back."""

import numpy as np
import pytest
import torch

from gradients.against import Twice, agrees_once

X, W = np.array([1.0, 0.5, -1.0]), np.array([0.5, -1.0, 1.2])
INNER = """If (d) <then_branch = tt () => (double[3] p1)
                    { g = OptionalGetElement(o)  p1 = Mul(g, g) },
                  else_branch = te () => (double[3] p2) { p2 = Neg(m) }>"""


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_a_branch_keeps_an_optional(outer: bool, inner: bool) -> None:
    text = f"""(bool c, bool d, double[3] x, double[3] w) => (double l) {{
      y = If (c) <then_branch = t () => (double[3] a) {{
          m = Mul(x, w)  s = Sin(m)  o = Optional(s)  p = {INNER}  a = Mul(p, m) }},
        else_branch = e () => (double[3] b) {{ b = Neg(x) }}>
      l = ReduceSum<keepdims=0>(y) }}"""

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        m = x * w
        taken = torch.sin(m) ** 2 if inner else -m
        return (taken * m).sum() if outer else -x.sum()

    Twice(text, "x", "w").agrees(expected, c=outer, d=inner, x=X, w=W)


@pytest.mark.parametrize("inner", [True, False])
def test_a_loop_keeps_optionals(inner: bool) -> None:
    text = f"""(int64 n, bool d, double[3] x, double[3] w) => (double l) {{
      y = Loop (n, , x) <body = b (int64 i, bool go, double[3] v) => (bool go_on, double[3] u) {{
          go_on = Identity(go)
          m = Mul(v, w)  s = Sin(m)  o = Optional(s)  p = {INNER}  u = Mul(p, m) }}>
      l = ReduceSum<keepdims=0>(y) }}"""

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            m = x * w
            x = (torch.sin(m) ** 2 if inner else -m) * m
        return x.sum()

    agrees_once(text, ["x", "w"], expected, n=3, d=inner, x=X, w=W)


def test_a_loop_keeps_optional_sequences() -> None:
    text = """(int64 n, bool d, double[3] x, double[3] w) => (double l) {
      y = Loop (n, , x) <body = b (int64 i, bool go, double[3] v) => (bool go_on, double[3] u) {
          go_on = Identity(go)  zero = Constant<value = int64 {0}>()
          m = Mul(v, w)  s = SequenceConstruct(m, v)  o = Optional(s)
          p = If (d) <then_branch = t () => (double[3] p1)
                        { g = OptionalGetElement(o)  p1 = SequenceAt(g, zero) },
                      else_branch = e () => (double[3] p2) { p2 = Neg(v) }>
          u = Sin(p) }>
      l = ReduceSum<keepdims=0>(y) }"""
    for given in (True, False):

        def expected(x: torch.Tensor, w: torch.Tensor, given: bool = given) -> torch.Tensor:
            for _ in range(3):
                x = torch.sin(x * w if given else -x)
            return x.sum()

        agrees_once(text, ["x", "w"], expected, n=3, d=given, x=X, w=W)


def test_a_loop_carries_an_optional() -> None:
    text = """(int64 n, double[3] x, double[3] w) => (double l) {
      o = Optional(x)
      q = Loop (n, , o) <body = b (int64 i, bool go, optional(double[3]) v)
          => (bool go_on, optional(double[3]) u) {
        go_on = Identity(go)  h = OptionalHasElement(v)
        p = If (h) <then_branch = t () => (double[3] p1)
                      { g = OptionalGetElement(v)  p1 = Mul(g, w) },
                    else_branch = e () => (double[3] p2) { p2 = Neg(w) }>
        s = Sin(p)  u = Optional(s) }>
      y = OptionalGetElement(q)  l = ReduceSum<keepdims=0>(y) }"""

    def expected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.sin(x * w)
        return x.sum()

    agrees_once(text, ["x", "w"], expected, n=3, x=X, w=W)


def test_an_optional_without_a_value_is_kept_too() -> None:
    text = """(int64 n, bool d, double[3] x, double[3] w) => (double l) {
      y = Loop (n, , x) <body = b (int64 i, bool go, double[3] v) => (bool go_on, double[3] u) {
          go_on = Identity(go)  zero = Constant<value = int64 {0}>()
          m = Mul(v, w)  first = Equal(i, zero)
          o = If (first) <then_branch = t () => (optional(double[3]) o1) { o1 = Optional(m) },
                          else_branch = e () => (optional(double[3]) o2)
                            { o2 = Optional<type: type_proto = double[3]>() }>
          h = OptionalHasElement(o)  both = And(h, d)
          p = If (both) <then_branch = r () => (double[3] p1)
                           { g = OptionalGetElement(o)  p1 = Mul(g, g) },
                         else_branch = s () => (double[3] p2) { p2 = Sin(m) }>
          u = Identity(p) }>
      l = ReduceSum<keepdims=0>(y) }"""
    for given in (True, False):

        def expected(x: torch.Tensor, w: torch.Tensor, given: bool = given) -> torch.Tensor:
            for step in range(3):
                m = x * w
                x = m * m if step == 0 and given else torch.sin(m)
            return x.sum()

        agrees_once(text, ["x", "w"], expected, n=3, d=given, x=X, w=W)
