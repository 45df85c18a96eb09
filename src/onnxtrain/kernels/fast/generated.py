"""Chains of operators that work element by element, each generated as one Triton kernel.

The source of a kernel follows from the lines of the chain and from how its inputs lie in memory:
as the output does, as its last axes do, or as a single number.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.fast.compiled import Compiled
from onnxtrain.kernels.fast.launch import cdiv

BLOCK, WARPS = 1024, 4
FULL, LAST, SINGLE = "full", "last", "single"
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
    "ReluGrad": "tl.where({1} > 0, {0}, 0.0)",
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


def takes(inputs: Sequence[Tensor]) -> bool:
    """Whether one kernel serves such inputs: of one type, and lying as these kernels read them."""
    shape = torch.broadcast_shapes(*(x.shape for x in inputs))
    whole = [x for x in inputs if x.shape == shape]
    if not whole or len({x.dtype for x in inputs}) > 1 or not _is_dense(whole[0]):
        return False
    if any(x.stride() != whole[0].stride() for x in whole):
        return False
    kinds = _kinds(inputs, shape, whole[0].is_contiguous())
    return kinds is not None and fast.ready(*map(_flat, whole))


def run(lines: Sequence[Line], inputs: Sequence[Tensor]) -> Tensor:
    """What the last line gives."""
    shape = torch.broadcast_shapes(*(x.shape for x in inputs))
    first = next(x for x in inputs if x.shape == shape)
    kinds = _kinds(inputs, shape, first.is_contiguous())
    assert kinds is not None
    out = torch.empty_like(first)
    chain = _generated(tuple(lines), kinds)
    sizes = [x.numel() for x in inputs]
    chain[(cdiv(first.numel(), BLOCK),)](
        out, *inputs, first.numel(), *sizes, BLOCK, num_warps=WARPS
    )
    return out


def _is_dense(x: Tensor) -> bool:
    return x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last))


def _flat(x: Tensor) -> Tensor:
    """All elements in the order of memory."""
    return x.as_strided((x.numel(),), (1,))


def _kinds(inputs: Sequence[Tensor], shape: torch.Size, ordinary: bool) -> tuple[str, ...] | None:
    """How each input is read; None if one is spread in another way."""
    found = []
    for x in inputs:
        sizes = list(x.shape)
        while sizes and sizes[0] == 1:
            sizes.pop(0)
        if x.shape == shape:
            found.append(FULL)
        elif x.numel() == 1:
            found.append(SINGLE)
        elif ordinary and x.is_contiguous() and sizes == list(shape)[len(shape) - len(sizes) :]:
            found.append(LAST)
        else:
            return None
    return tuple(found)


def source(lines: Sequence[Line], kinds: Sequence[str]) -> str:
    """The kernel as Triton's Python."""
    names = [f"x{index}" for index in range(len(kinds))]
    sizes = [f"n{index}" for index in range(len(kinds))]
    places = {FULL: "at, there, 0.0", SINGLE: None}
    text = [
        f"def chain(out, {', '.join(names)}, count, {', '.join(sizes)}, B: tl.constexpr):",
        "    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)",
        "    there = at < count",
    ]
    for index, kind in enumerate(kinds):
        place = places.get(kind, f"at % n{index}, there, 0.0")
        pointer = f"x{index}" if place is None else f"x{index} + {place}"
        text.append(f"    v{index} = tl.load({pointer}).to(tl.float32)")
    for index, line in enumerate(lines, start=len(kinds)):
        rounded = f"({_expression(line)}).to(out.dtype.element_ty)"
        text.append(f"    v{index} = {rounded}.to(tl.float32)")
    last = len(kinds) + len(lines) - 1
    text.append(f"    tl.store(out + at, v{last}.to(out.dtype.element_ty), there)")
    return "\n".join(text) + "\n"


def _expression(line: Line) -> str:
    operands = [f"v{index}" for index in line.operands]
    if line.op == "Sum":
        return " + ".join(operands)
    return _EXPRESSIONS[line.op].format(*operands, alpha=repr(line.alpha))


@functools.cache
def _generated(lines: tuple[Line, ...], kinds: tuple[str, ...]) -> Compiled:
    """The compiled kernel; Triton reads its source where Python looks lines up."""
    text = source(lines, kinds)
    name = f"<onnxtrain chain {abs(hash(text)):x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    names: dict[str, Any] = {"tl": tl, "__name__": __name__}
    exec(compile(text, name, "exec"), names)
    return Compiled(triton.jit(names["chain"]))
