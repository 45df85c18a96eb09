"""One row of the operator table: an operator, inputs, attributes and a float64 truth.

A row buys every test of the operator: values in each element type, each claim of its kernel's
decorator, and gradients by finite differences and by torch autograd through the same reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from onnxtrain.types import FLOATS, DataType

Make = Callable[[torch.Generator], Any]


@dataclasses.dataclass(frozen=True)
class Input:
    """How to make one input.

    Attributes:
        make: Draws the value (float64 for floating point inputs).
        dtype: The fixed ONNX type, or None for the type under test.
        grad: Whether the operator is differentiable in it.
        constant: Whether the value is part of the graph (an initializer) instead of a feed.
    """

    make: Make
    dtype: DataType | None = None
    grad: bool = True
    constant: bool = False

    def no_grad(self) -> Input:
        """The same input, of which no gradient is asked."""
        return dataclasses.replace(self, grad=False)

    def typed(self, dtype: DataType) -> Input:
        """The same input in a fixed element type."""
        return dataclasses.replace(self, dtype=dtype)


@dataclasses.dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
        op: Operator name.
        inputs: Inputs in order; None for one that is left out.
        reference: Torch function of the inputs and attributes, exact when given float64. None takes
            ONNX's own reference implementation.
        attributes: Attributes of the node.
        domain: Operator domain.
        opset: Version of the operator's domain; None takes the newest.
        outputs: How many outputs the node has.
        dtypes: Types under test.
        name: Distinguishes rows of the same operator.
        gradient: False if the row says nothing about gradients.
        compare: Outputs that have a defined value (None: all of them).
        empty: Outputs (by index) left unnamed.
    """

    op: str
    inputs: Sequence[Input | None]
    reference: Callable[..., Any] | None = None
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    domain: str = ""
    opset: int | None = None
    outputs: int = 1
    dtypes: frozenset[DataType] = FLOATS
    name: str = ""
    gradient: bool = True
    compare: Sequence[int] | None = None
    empty: Sequence[int] = ()

    def __str__(self) -> str:
        shown = ",".join(f"{k}={v}" for k, v in self.attributes.items())
        parts = [self.op, self.name or shown, f"v{self.opset}" if self.opset else ""]
        return "-".join(part for part in parts if part).replace(" ", "")

    def draw(self, seed: int = 0) -> list[torch.Tensor | None]:
        """Fresh values for the inputs, floating point ones in float64."""
        generator = torch.Generator().manual_seed(seed)
        return [None if item is None else item.make(generator) for item in self.inputs]


def normal(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Input:
    """Values of the normal distribution."""
    return Input(lambda g: torch.randn(shape, generator=g, dtype=torch.float64) * scale + mean)


def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Input:
    """Values spread evenly between two bounds."""
    return Input(lambda g: torch.rand(shape, generator=g, dtype=torch.float64) * (high - low) + low)


def apart(*shape: int, gap: float = 0.05) -> Input:
    """Distinct values, at least ``gap`` apart and away from 0, for operators with ties or kinks."""

    def make(generator: torch.Generator) -> torch.Tensor:
        count = int(torch.Size(shape).numel())
        order = torch.randperm(count, generator=generator).to(torch.float64)
        return ((order - count // 2 + 0.5) * gap).reshape(shape)

    return Input(make)


def integers(*shape: int, low: int = 0, high: int, dtype: DataType = DataType.INT64) -> Input:
    """Whole numbers from ``low`` up to but without ``high``."""
    return Input(lambda g: torch.randint(low, high, shape, generator=g), dtype, grad=False)


def booleans(*shape: int, true: float = 0.5) -> Input:
    """Random truth values."""
    return Input(lambda g: torch.rand(shape, generator=g) < true, DataType.BOOL, grad=False)


def given(value: Any, dtype: DataType | None = None, *, constant: bool = False) -> Input:
    """A fixed value; whole numbers become int64 unless a type is given."""
    tensor = torch.as_tensor(value)
    if dtype is None and not tensor.dtype.is_floating_point:
        dtype = DataType.BOOL if tensor.dtype is torch.bool else DataType.INT64
    if tensor.dtype.is_floating_point:
        tensor = tensor.to(torch.float64)
    differentiable = dtype is None and not constant
    return Input(lambda g: tensor.clone(), dtype, grad=differentiable, constant=constant)


def text(words: Any, *, constant: bool = False) -> Input:
    """Strings, in nested lists for more than one axis."""
    array = np.array(words, object)
    return Input(lambda g: array.copy(), DataType.STRING, grad=False, constant=constant)


def shape_input(*values: int) -> Input:
    """A constant int64 vector: a shape, axes, pads, sizes."""
    return given(torch.tensor(values, dtype=torch.int64), constant=True)


def derived(make: Callable[[torch.Generator], torch.Tensor], *, grad: bool = True) -> Input:
    """A value computed by a function of the generator (for inputs that must fit each other)."""
    return Input(make, grad=grad)


def only(*dtypes: DataType) -> frozenset[DataType]:
    """A set of types under test."""
    return frozenset(dtypes)


def rows(families: Iterable[Iterable[Case]]) -> list[Case]:
    """All rows of several families."""
    return [row for family in families for row in family]
