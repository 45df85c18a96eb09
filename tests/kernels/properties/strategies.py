"""Random shapes, element types, values and rows; examples shrink to small and contiguous ones."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from onnxtrain.testing.case import Case, Input, given
from onnxtrain.types import DataType

Draw = Callable[..., Any]
Shape = tuple[int, ...]

LARGEST = 7
"""Size of an axis."""
TYPES = (DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT16, DataType.BFLOAT16)
float_types = st.sampled_from(TYPES)
index_types = st.sampled_from([DataType.INT64, DataType.INT32])
seeds = st.integers(0, 2**16)
layouts = st.integers(0, 2**12)
"""How inputs lie in memory, see ``place``; 0 is contiguous."""
flags = st.integers(0, 1)


@st.composite
def shapes(
    draw: Draw, low: int = 0, high: int = 5, *, smallest: int = 0, largest: int = LARGEST
) -> Shape:
    """Sizes of low to high axes; long ones only where there are few."""
    rank = draw(st.integers(low, high))
    most = largest if rank < 4 else min(largest, 4)
    return tuple(draw(st.lists(st.integers(smallest, most), min_size=rank, max_size=rank)))


def axes(rank: int) -> st.SearchStrategy[int]:
    """An axis of a tensor, counted from either end."""
    return st.integers(-rank, rank - 1)


@st.composite
def axes_lists(draw: Draw, rank: int, *, smallest: int = 0) -> tuple[int, ...]:
    """Different axes in any order, each counted from either end."""
    if not rank:
        return ()
    chosen = draw(st.lists(st.integers(0, rank - 1), min_size=smallest, unique=True))
    return tuple(axis - rank * draw(flags) for axis in chosen)


@st.composite
def numbers(draw: Draw, shape: Sequence[int], *, scale: float = 1.0) -> torch.Tensor:
    """A float64 tensor: spread normally, of small whole numbers, or repeated along an axis."""
    shape = tuple(shape)
    kind = draw(st.sampled_from(["normal", "whole", "repeated"]))
    generator = torch.Generator().manual_seed(draw(seeds))
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    if kind == "whole":
        return (x * 2).round()
    if kind == "repeated" and shape and math.prod(shape):
        axis = draw(st.integers(0, len(shape) - 1))
        return x.narrow(axis, 0, 1).expand_as(x).clone()
    return x


@st.composite
def shares(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """A float64 tensor of numbers strictly between 0 and 1."""
    generator = torch.Generator().manual_seed(draw(seeds))
    return torch.rand(tuple(shape), generator=generator, dtype=torch.float64) * 0.98 + 0.01


@st.composite
def indices(draw: Draw, shape: Sequence[int], size: int, *, negative: bool = True) -> torch.Tensor:
    """Whole numbers in [-size, size), many of them equal; all 0 if there is nothing to choose."""
    low = -size if negative and draw(st.booleans()) else 0
    generator = torch.Generator().manual_seed(draw(seeds))
    return torch.randint(low, max(size, 1), tuple(shape), generator=generator)


@st.composite
def truths(draw: Draw, shape: Sequence[int]) -> torch.Tensor:
    """Truth values."""
    generator = torch.Generator().manual_seed(draw(seeds))
    return torch.rand(tuple(shape), generator=generator) < draw(st.sampled_from([0.5, 0.1, 0.9]))


@st.composite
def broadcast_to(draw: Draw, shape: Sequence[int]) -> Shape:
    """A shape that broadcasts to another: fewer axes in front, some of size 1."""
    rest = tuple(shape)[draw(st.integers(0, len(shape))) :]
    return tuple(1 if draw(st.booleans()) else size for size in rest)


def floats(low: float, high: float) -> st.SearchStrategy[float]:
    """Values of an attribute, which a model keeps in float32."""
    return st.floats(low, high, width=32)


def vector(*values: int) -> Input:
    """A constant int64 vector: a shape, axes, sizes."""
    return given(torch.tensor(values, dtype=torch.int64), constant=True)


def scalar(value: Any, dtype: DataType = DataType.FLOAT, *, vector: bool = False) -> Input:
    """A constant of one element, of rank 0 or 1."""
    return given(torch.tensor([value] if vector else value), dtype, constant=True)


def row(op: str, inputs: Sequence[Any], reference: Callable[..., Any], **facts: Any) -> Case:
    """A row of tensors (or inputs that are ready) without a gradient."""
    ready = [item if item is None or isinstance(item, Input) else given(item) for item in inputs]
    facts.setdefault("domain", "com.microsoft")
    return Case(op, ready, reference, gradient=False, **facts)
