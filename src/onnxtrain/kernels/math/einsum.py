"""Einsum: sums of products over named axes."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from onnxtrain.kernels.precision import as_int64, from_int64, lacks_products, store, widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS, INTEGERS


@kernel("Einsum", since=12, T=FLOATS)
def einsum(*xs: Tensor, equation: str) -> Tensor:
    """Products of the inputs, summed over the axes that the right side of the equation leaves out.

    Two inputs are multiplied in their own type, if the device can; a longer chain of products in 16
    bits would round in between, so it is computed in float32.
    """
    if len(xs) == 1:  # a pure rearrangement of axes comes back as a view of its input
        return torch.einsum(equation, *xs).clone()
    if len(xs) == 2 and not lacks_products(xs[0]):
        return torch.einsum(equation, *xs)
    return store(torch.einsum(equation, *map(widen, xs)), xs[0])


@kernel("Einsum", since=12, T=INTEGERS)
def einsum_integers(*xs: Tensor, equation: str) -> Tensor:
    """The same for whole numbers, modulo 2^n, as one broadcast product and one sum."""
    terms, result = _parse(equation)
    if len(terms) != len(xs):
        raise ValueError(f"equation {equation!r} has {len(terms)} terms for {len(xs)} inputs")
    hidden = [x.ndim - len(term.replace("...", "")) for x, term in zip(xs, terms, strict=True)]
    dots = [f".{i}" for i in range(max(hidden))]
    named = [_labels(term, dots[len(dots) - n :]) for term, n in zip(terms, hidden, strict=True)]
    kept = _labels(result, dots)
    summed = sorted({name for labels in named for name in labels} - set(kept))
    order = [*kept, *summed]
    factors = [_spread(as_int64(x), names, order) for x, names in zip(xs, named, strict=True)]
    product = functools.reduce(torch.mul, factors)
    total = product.sum(tuple(range(len(kept), len(order)))) if summed else product.clone()
    return from_int64(total, xs[0].dtype)


def _parse(equation: str) -> tuple[list[str], str]:
    """Terms of the inputs and of the output; without an arrow, of the names that occur once."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    if not arrow:
        names = left.replace(",", "").replace("...", "")
        right = "..." * ("..." in left) + "".join(sorted(c for c in names if names.count(c) == 1))
    return left.split(","), right


def _labels(term: str, dots: list[str]) -> list[str]:
    """Names of the axes of a term, with its ellipsis written out."""
    before, ellipsis, after = term.partition("...")
    return [*before, *(dots if ellipsis else []), *after]


def _spread(x: Tensor, labels: list[str], order: list[str]) -> Tensor:
    """The tensor with one axis for each name in order, and diagonals for repeated names."""
    for name in order:
        while labels.count(name) > 1:
            first = labels.index(name)
            second = labels.index(name, first + 1)
            x = x.diagonal(dim1=first, dim2=second)
            labels = [c for i, c in enumerate(labels) if i not in (first, second)] + [name]
    x = x.permute([labels.index(name) for name in order if name in labels])
    return x[tuple(slice(None) if name in labels else None for name in order)]
