"""Equations of Einsum: shapes of what is broadcast, and mistakes."""

import pytest

from graph.text import model, values
from onnxtrain.errors import GraphError
from onnxtrain.graph.prepare import prepare


def _text(equation: str, x: str, w: str) -> str:
    node = f'e = Einsum<equation="{equation}">(x, w)'
    return f"(float[{x}] x, float[{w}] w) => (float[] y) {{ {node} y = Neg(e) }}"


@pytest.mark.parametrize(
    ("equation", "x", "w", "found"),
    [
        ("ij,ij->ij", "2,1", "1,3", [2, 3]),
        ("bij,bjk->bik", "1,2,3", "4,3,2", [4, 2, 2]),
        ("ij,ij->ij", "1,N", "M,1", ["M", "N"]),
        ("ij,ij->ij", "N,3", "N,3", ["N", 3]),
        ("ij,ij->ij", "N,3", "M,3", [None, 3]),
        ("ij,ij->ij", "N,3", "4,3", [4, 3]),
        ("ij,ij->ij", "0,3", "1,3", [0, 3]),
        ("ij,jk", "2,1", "5,3", [2, 3]),
        ("...i,i...->...", "N,3", "3,M", [None]),
        ("...i,i...->...", "1,3", "3,N", ["N"]),
        ("...i,...i->i...", "2,3", "4,1,3", [3, 4, 2]),
        ("...i,i->...", "", "3", None),
        ("ij,jk->ki", "", "5,3", [3, None]),
    ],
)
def test_shapes(equation: str, x: str, w: str, found: list[int | str | None] | None) -> None:
    known = values(prepare(model(_text(equation, x, w))))
    for name in ("e", "y"):
        shape = known[name].shape
        sizes = None if shape is None else [d if isinstance(d, int) else d.value for d in shape]
        assert sizes == found, name


def test_a_declared_shape_that_says_more_is_believed() -> None:
    text = """(float[N,3] x, float[M,3] w) => (float[] y) <float[4,3] e>
      { e = Einsum<equation="ij,ij->ij">(x, w) y = Neg(e) }"""
    assert list(values(prepare(model(text)))["y"].shape or ()) == [4, 3]


@pytest.mark.parametrize(
    ("equation", "x", "w", "told"),
    [
        ("ij,jk->ik", "2,3", "4,5", "axis 'j' has the sizes 3 and 4\n  give it one size"),
        ("ii,i->i", "1,3", "3", "axis 'i' has the sizes 1 and 3\n"),
        ("ijk,jk->ik", "2,3", "3,4", "term 'ijk' names 3 axes, 'x' has 2\n  name every axis"),
        ("...ijk,jk->ik", "2,3", "3,4", "term '...ijk' names 3 axes, 'x' has 2"),
        ("i,jk->ik", "2,3", "3,4", "term 'i' names 1 axes, 'x' has 2"),
        ("ij,jk,kl->il", "", "", "it has 3 terms for 2 operands\n  write one term for each"),
        ("ij->i", "2,3", "3,4", "it has 1 terms for 2 operands"),
        ("ij,jk->iz", "", "", "axis 'z' of the result is in no operand\n  name only axes"),
        ("ij,jk->ii", "2,3", "3,4", "its result has an axis twice\n  name each axis once"),
        ("..ij,jk->ik", "2,3", "3,4", "it is no list of terms\n  write it like 'ij,jk->ik'"),
        ("i......j,jk->ik", "2,3", "3,4", "it is no list of terms"),
        ("i1,1k->ik", "2,3", "3,4", "it is no list of terms"),
        ("ij,jk->ik->", "2,3", "3,4", "it is no list of terms"),
    ],
)
def test_mistakes(equation: str, x: str, w: str, told: str) -> None:
    with pytest.raises(GraphError) as caught:
        prepare(model(_text(equation, x, w)))
    assert f"cannot read equation '{equation}' of node 'Einsum_e' (Einsum): {told}" in str(
        caught.value
    )
