"""Gradients of Einsum where only a run tells which axes are broadcast, or how many there are."""

import numpy as np
import pytest

from gradients.emit import agrees_with_differences, emitted


def _text(equation: str, *shapes: str) -> str:
    inputs = ", ".join(f"double[{shape}] x{i}" for i, shape in enumerate(shapes))
    names = ", ".join(f"x{i}" for i in range(len(shapes)))
    return f'({inputs}) => (double[] y) {{ y = Einsum<equation="{equation}">({names}) }}'


def _agrees(text: str, equation: str, *sizes: tuple[int, ...], opset: int = 21) -> None:
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=size) for size in sizes]
    y = np.einsum(equation, *xs, optimize=True)
    feeds = {f"x{i}": x for i, x in enumerate(xs)}
    d_y = rng.normal(size=y.shape)
    found = agrees_with_differences(text, opset=opset, **feeds, d_y=d_y)
    np.testing.assert_allclose(found["y"], y, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("opset", [12, 21])
@pytest.mark.parametrize("sizes", [((2, 1), (5, 3)), ((2, 5), (1, 3)), ((2, 5), (5, 3))])
def test_a_run_tells_what_is_broadcast(sizes: tuple[tuple[int, ...], ...], opset: int) -> None:
    _agrees(_text("ij,jk->ik", "A,B", "C,D"), "ij,jk->ik", *sizes, opset=opset)


@pytest.mark.parametrize("sizes", [((1, 3), (4, 3)), ((4, 3), (1, 1)), ((1, 1), (1, 3))])
def test_the_same_of_an_axis_that_stays(sizes: tuple[tuple[int, ...], ...]) -> None:
    _agrees(_text("ij,ij->i", "A,B", "C,D"), "ij,ij->i", *sizes)


@pytest.mark.parametrize(
    ("equation", "sizes"),
    [
        ("...ij,...jk->...ik", ((1, 2, 3), (4, 3, 2))),
        ("...ij,jk->...ik", ((4, 2, 3), (3, 2))),
        ("...ij,jk->...ik", ((2, 3), (3, 2))),
        ("i...j,...jk->i...k", ((2, 3, 1), (4, 1, 5, 2))),
        ("i...i,...->...i", ((2, 3, 2), (3,))),
        ("...ij,...->...i", ((3, 2, 4), (1,))),
        ("i...j,k->ik", ((2, 3, 4), (2,))),
        ("i...,...", ((2, 3), (3,))),
        ("i...->i...", ((2, 3, 4),)),
    ],
)
def test_a_run_tells_how_many_axes_an_ellipsis_has(
    equation: str, sizes: tuple[tuple[int, ...], ...]
) -> None:
    _agrees(_text(equation, *[""] * len(sizes)), equation, *sizes)


@pytest.mark.parametrize(
    ("equation", "shapes", "sizes"),
    [
        ("ij,jk->ik", ("2,1", "5,3"), ((2, 1), (5, 3))),
        ("bij,bjk->bik", ("1,2,N", "B,N,2"), ((1, 2, 3), (4, 3, 2))),
        ("ij,ij->j", ("1,N", "M,1"), ((1, 3), (2, 1))),
        ("ij,i->i", ("1,N", "M"), ((1, 4), (3,))),
    ],
)
def test_declared_sizes_tell_it(
    equation: str, shapes: tuple[str, ...], sizes: tuple[tuple[int, ...], ...]
) -> None:
    _agrees(_text(equation, *shapes), equation, *sizes)


def test_nothing_is_stretched_or_summed_where_sizes_are_the_same() -> None:
    text = _text("bij,bjk->bik", "N,A,B", "N,B,D")
    assert [line.split("(")[0] for line in emitted(text)] == ["Einsum", "Einsum"]
