"""Chains of operators that work element by element, each generated as one Triton kernel.

The source of a kernel follows from the lines of the chain and from how its inputs lie in memory:
as the output does, as its last axes do, or in another way, axis by axis. The output lies as the
first input that has its shape.
"""

from __future__ import annotations

import functools
import linecache
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.fast.common.compiled import Compiled
from onnxtrain.kernels.fast.common.launch import cdiv

BLOCK, WARPS = {2: 1024, 4: 512}, 4
"""Elements of a program, by the bytes of one, and its warps."""
GROUP = 8
"""Elements with one place to find for all of them, where axes are multiples of it."""
FARTHEST = 1 << 31
"""Elements that 32 bits can count, in which such places are found."""
_EXPRESSIONS = {
    "Add": "{0} + {1}",
    "Sub": "{0} - {1}",
    "Mul": "{0} * {1}",
    "Div": "tl.div_rn({0}, {1})",
    "Neg": "-{0}",
    "Abs": "tl.abs({0})",
    "Exp": "tl.exp({0})",
    "Sqrt": "tl.sqrt_rn({0})",
    "Reciprocal": "tl.div_rn({0} * 0 + 1.0, {0})",
    # a comparison with NaN is false
    "Relu": "tl.where({0} < 0, 0.0, {0})",
    "ReluGrad": "tl.where({1} <= 0, 0.0, {0})",
    "Where": "tl.where({0}, {1}, {2})",
    "Greater": "{0} > {1}",
    "Less": "{0} < {1}",
    "GreaterOrEqual": "{0} >= {1}",
    "LessOrEqual": "{0} <= {1}",
    "And": "{0} & {1}",
    "Or": "{0} | {1}",
    "Not": "{0} == 0",
    "Sigmoid": "tl.sigmoid({0})",
    "SigmoidGrad": "{0} * ({1} * (1 - {1}))",
    "TanhGrad": "{0} * (1 - {1} * {1})",
    "QuickGelu": "{0} * tl.sigmoid({0} * {alpha})",
    "QuickGeluGrad": (
        "{0} * (tl.sigmoid({1} * {alpha}) * (1 + {1} * {alpha} * (1 - tl.sigmoid({1} * {alpha}))))"
    ),
}


class Line(Protocol):
    """One operator of a chain, and the numbers of its operands."""

    @property
    def op(self) -> str:
        """Its name."""

    @property
    def alpha(self) -> float:
        """Its factor, if it has one."""

    @property
    def operands(self) -> tuple[int, ...]:
        """Which values it takes."""


_TRUTHS = {"Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Not"}
Form = tuple[bool, bool, bool]
Forms = tuple[tuple[Form, ...], ...]
_PLAIN: Form = (False, False, False)
_ONE_AXIS = ["    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)"]
_IN_GROUPS = [
    "    group = tl.program_id(0) * B + tl.arange(0, B // G) * G",
    "    lane = tl.arange(0, G)[None, :]",
    "    at = group[:, None] + lane",
    "    some = group[:, None] < count",
]


class Term(NamedTuple):
    """An axis along which an input goes, or several that lie one behind the other.

    Attributes:
        below: Elements of the output behind one of this axis.
        size: How long it is.
        stride: How far apart its elements lie.
        first: Whether no axis of the output is before it.
    """

    below: int
    size: int
    stride: int
    first: bool

    @property
    def form(self) -> Form:
        """Whether its place is divided, cut off and multiplied, for which a kernel is written."""
        return self.below != 1, not self.first, self.stride != 1

    def numbers(self) -> list[int]:
        """What a kernel of this form is given."""
        values = zip(self.form, (self.below, self.size, self.stride), strict=True)
        return [number for needed, number in values if needed]


class Layout(NamedTuple):
    """How a chain goes over inputs of certain shapes and strides.

    Attributes:
        shape: That of the output.
        like: The number of the input whose layout the output has, None for the usual one.
        forms: How each input is read.
        numbers: What a kernel for that is given.
        group: Elements of a group, if there are groups.
        near: Whether 32 bits are enough for all places.
    """

    shape: tuple[int, ...]
    like: int | None
    forms: Forms
    numbers: tuple[int, ...]
    group: tuple[int, ...]
    near: bool


def takes(inputs: Sequence[Tensor]) -> bool:
    """Whether one kernel serves such inputs: of one type, and so many as pay for it."""
    first, differentiated = inputs[0], torch.is_grad_enabled()
    if first.dtype not in fast.TYPES or any(x.dtype != first.dtype for x in inputs):
        return False
    if any(not x.is_cuda or (differentiated and x.requires_grad) for x in inputs):
        return False  # autograd cannot go back through Triton
    found = _layout(inputs)
    return math.prod(found.shape) >= fast.SMALLEST and (found.near or not found.group)


def run(lines: Sequence[Line], inputs: Sequence[Tensor]) -> Tensor:
    """What the last line gives."""
    found = _layout(inputs)
    if found.like is None:
        out = inputs[0].new_empty(found.shape)
    else:
        out = torch.empty_like(inputs[found.like])
    chain = _generated(tuple(lines), found.forms)
    block = BLOCK[out.dtype.itemsize]
    chain[(cdiv(out.numel(), block),)](
        out, *inputs, out.numel(), *found.numbers, block, *found.group, num_warps=WARPS
    )
    return out


def _layout(inputs: Sequence[Tensor]) -> Layout:
    return layout_of(tuple([(tuple(x.shape), x.stride()) for x in inputs]))


@functools.lru_cache(1024)
def layout_of(given: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]) -> Layout:
    """For inputs of these shapes and strides.

    The output lies as the first of them that has its shape and no holes.
    """
    shape = tuple(torch.broadcast_shapes(*(sizes for sizes, _ in given)))
    whole = (i for i, one in enumerate(given) if one[0] == shape and _is_dense(*one))
    like = next(whole, None)
    order = range(len(shape)) if like is None else _order(given[like][1])
    terms = [_terms(sizes, strides, shape, order) for sizes, strides in given]
    plain = all(term.form == _PLAIN for found in terms for term in found)
    farthest = max(_distance(found) for found in terms)
    return Layout(
        shape,
        like,
        tuple(tuple(term.form for term in found) for found in terms),
        tuple(number for found in terms for term in found for number in term.numbers()),
        () if plain else (_group(terms),),
        max(farthest, math.prod(shape)) < FARTHEST,
    )


def _order(strides: Sequence[int]) -> list[int]:
    """Axes as they lie in memory."""
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie without holes, whatever the order of the axes."""
    below = 1
    for axis in reversed(_order(strides)):
        if sizes[axis] > 1 and strides[axis] != below:
            return False
        below *= sizes[axis]
    return True


def _terms(
    sizes: Sequence[int], strides: Sequence[int], shape: Sequence[int], order: Sequence[int]
) -> list[Term]:
    """Where the elements of an input lie that belong to those of the output, in its order."""
    lead = len(shape) - len(sizes)
    axes: list[tuple[int, int]] = []
    for axis in order:
        size, own = shape[axis], axis - lead
        stride = 0 if own < 0 or sizes[own] == 1 else strides[own]
        if size == 1:
            continue
        if axes and axes[-1][1] == stride * size:
            axes[-1] = (axes[-1][0] * size, stride)
        else:
            axes.append((size, stride))
    below, found = 1, list[Term]()
    for place, (size, stride) in reversed([*enumerate(axes)]):
        if stride:
            found.append(Term(below, size, stride, place == 0))
        below *= size
    return found


def _distance(terms: Sequence[Term]) -> int:
    """How far the last element of an input is from the first."""
    return sum((term.size - 1) * term.stride for term in terms)


def _group(terms: Sequence[Sequence[Term]]) -> int:
    """How many elements are side by side wherever a place is divided or cut off."""
    steps = [term.below for found in terms for term in found if term.below > 1]
    steps += [term.size for found in terms for term in found if term.below == 1 and not term.first]
    return math.gcd(GROUP, *steps)


def source(lines: Sequence[Line], forms: Forms) -> str:
    """The kernel as Triton's Python."""
    names, places = list[str](), list[str]()
    for index, terms in enumerate(forms):
        parts = []
        for which, form in enumerate(terms):
            letters = [f"{letter}{index}_{which}" for letter in "bns"]
            names += [name for name, needed in zip(letters, form, strict=True) if needed]
            parts.append(_place(form, *letters))
        # of what is the same for a group, one element is read
        mask = "there" if any(not divided for divided, _, _ in terms) else "some"
        places.append(f"x{index} + {' + '.join(parts)}, {mask}, 0.0" if parts else f"x{index}")
    plain = all(form == _PLAIN for terms in forms for form in terms)
    given = ["out", *(f"x{index}" for index in range(len(forms))), "count", *names]
    given += ["B: tl.constexpr"] if plain else ["B: tl.constexpr", "G: tl.constexpr"]
    text = [f"def chain({', '.join(given)}):", *(_ONE_AXIS if plain else _IN_GROUPS)]
    text.append("    there = at < count")
    for index, place in enumerate(places):
        text.append(f"    v{index} = tl.load({place}).to(tl.float32)")
    for index, line in enumerate(lines, start=len(places)):
        rounded = f"({_expression(line)}).to(out.dtype.element_ty).to(tl.float32)"
        text.append(f"    v{index} = {_expression(line) if line.op in _TRUTHS else rounded}")
    last = len(places) + len(lines) - 1
    text.append(f"    tl.store(out + at, v{last}.to(out.dtype.element_ty), there)")
    return "\n".join(text) + "\n"


def _place(form: Form, below: str, size: str, stride: str) -> str:
    """Where an axis has the elements of a group, or the group if it is the same for all of it."""
    if form == _PLAIN:
        return "at"
    divided, cut, multiplied = form
    first = f"group // {below}" if divided else "group"
    first = f"{first} % {size}" if cut else first
    by = f" * {stride}" if multiplied else ""
    return f"({first}{by})[:, None]" if divided else f"({first}{by})[:, None] + lane{by}"


def _expression(line: Line) -> str:
    operands = [f"v{index}" for index in line.operands]
    if line.op == "Sum":
        return " + ".join(operands)
    return _EXPRESSIONS[line.op].format(*operands, alpha=repr(line.alpha))


@functools.cache
def _generated(lines: tuple[Line, ...], forms: Forms) -> Compiled:
    """The compiled kernel; Triton reads its source where Python looks lines up."""
    text = source(lines, forms)
    name = f"<onnxtrain chain {abs(hash(text)):x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    names: dict[str, Any] = {"tl": tl, "__name__": __name__}
    exec(compile(text, name, "exec"), names)
    return Compiled(triton.jit(names["chain"]))
