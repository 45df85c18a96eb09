"""Triton kernels judged beside torch: interpreted, in memory that shows what was not written."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from kernels.properties.judge import place
from kernels.properties.strategies import Draw, seeds
from onnxtrain.testing.close import largest_error, mismatch
from onnxtrain.testing.poison import poisoned

Tensor = torch.Tensor
kinds = st.sampled_from([torch.float32, torch.float16])
"""The interpreter rounds bfloat16 wrongly."""


@st.composite
def drawn(draw: Draw, *shape: int, kind: torch.dtype = torch.float32) -> Tensor:
    """Numbers that are spread normally, contiguous between guards that are not numbers."""
    generator = torch.Generator().manual_seed(draw(seeds))
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    return place(values.to(kind), 0).tensor


def spaced(x: Tensor, layout: int) -> Tensor:
    """The same matrix with up to seven elements that are not numbers between its rows."""
    space = random.Random(layout).randrange(8)
    wide = x.new_full((x.shape[0], x.shape[1] + space), float("nan"))
    return wide[:, : x.shape[1]].copy_(x)


def as_drawn(x: Tensor, last: bool) -> Tensor:
    """Images with their channels first, or with these last."""
    return x.contiguous(memory_format=torch.channels_last) if last else x


def beside(
    run: Callable[[], Any],
    reference: Callable[..., Any],
    given: Sequence[Tensor | None],
    types: Sequence[torch.dtype] | torch.dtype,
    terms: Callable[..., Any] | None = None,
) -> list[Tensor]:
    """Assert that results err no more than torch's in float32 do, rounded to the same types.

    Args:
        run: Gives a tensor or several.
        reference: The same of the given tensors, in the type that these have.
        given: Floating point tensors that the reference takes.
        types: Of the results, or of all of them.
        terms: Like the reference, but gives the magnitude of the terms that are summed in float32.
            Where they cancel, rounding is relative to them and not to the result.
    """
    with poisoned():
        found = _listed(run())
    true = _listed(reference(*_as(given, torch.float64)))
    plain = _listed(reference(*_as(given, torch.float32)))
    sizes = true if terms is None else _listed(terms(*_as(given, torch.float64)))
    types = [types] * len(true) if isinstance(types, torch.dtype) else types
    for n, (one, exact, other, size, kind) in enumerate(
        zip(found, true, plain, sizes, types, strict=True)
    ):
        own = largest_error(other.to(kind), exact)
        if terms is not None:
            own = max(own, torch.finfo(torch.float32).eps * float(size.abs().max()))
        wrong = mismatch(one, exact, own, kind)
        assert wrong is None, f"result {n}: {wrong}"
    return found


def _listed(values: Any) -> list[Tensor]:
    return [values] if isinstance(values, Tensor) else [*values]


def _as(given: Sequence[Tensor | None], kind: torch.dtype) -> list[Tensor | None]:
    return [None if t is None else t.detach().to(kind, copy=True) for t in given]
