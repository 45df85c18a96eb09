"""Branches and loops: each subgraph arrives as a function from its inputs to its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import to_torch
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import single
from onnxtrain.kernels.tensor.axes import axis_of
from onnxtrain.types import OWN, DataType

Body = Callable[..., tuple[Any, ...]]
Types = Sequence[tuple[int, tuple[int | None, ...] | None]]


@kernel("If", host=["cond"], outputs=0, needs=["wanted"])
def if_(
    cond: Any, *, then_branch: Body, else_branch: Body, wanted: tuple[bool, ...]
) -> Sequence[Any]:
    """The results of one branch or of the other."""
    branch = then_branch if single(cond) else else_branch
    return branch()[: len(wanted)]


@kernel(
    "Loop",
    host=["m", "cond"],
    host_params=[0, 1],
    host_results=[0],
    outputs=0,
    needs=["wanted", "out_types", "device"],
)
def loop(
    m: Any = None,
    cond: Any = None,
    *v_initial: Any,
    body: Body,
    wanted: tuple[bool, ...],
    out_types: Types,
    device: torch.device,
) -> Sequence[Any]:
    """Carried values after the last iteration, and what each iteration gave, stacked.

    It goes on while the condition holds and fewer than ``m`` iterations are done.
    """
    return _looped(m, cond, v_initial, body, wanted, out_types, device)


@kernel(
    "StackLoop",
    domain=OWN,
    host=["m", "cond"],
    host_params=[0, 1],
    host_results=[0],
    outputs=0,
    needs=["wanted", "out_types", "device"],
)
def stack_loop(
    m: Any = None,
    cond: Any = None,
    *given: Any,
    body: Body,
    pops: int = 0,
    pushes: int = 0,
    wanted: tuple[bool, ...],
    out_types: Types,
    device: torch.device,
) -> Sequence[Any]:
    """Loop whose last inputs are sequences: an iteration is given the last element that is left.

    Behind carried values it gives sequences of what each iteration gave behind its own, then rows.
    """
    return _looped(m, cond, given, body, wanted, out_types, device, pops, pushes)


def _looped(
    m: Any,
    cond: Any,
    given: Sequence[Any],
    body: Body,
    wanted: tuple[bool, ...],
    types: Types,
    device: torch.device,
    pops: int = 0,
    pushes: int = 0,
) -> Sequence[Any]:
    limit = None if m is None else single(m)
    going = True if cond is None else bool(single(cond))
    count = len(given) - pops
    carried, stacks = list(given[:count]), [list(sequence) for sequence in given[count:]]
    gathered: list[list[Tensor]] = [[] for _ in wanted[count:]]
    iteration, yes = 0, torch.tensor(True)
    while going and (limit is None or iteration < limit):
        if not all(stacks):
            raise ValueError(f"there are {iteration} elements to be taken, but more iterations")
        popped = (stack.pop() for stack in stacks)
        again, *values = body(torch.tensor(iteration), yes, *carried, *popped)
        going = bool(again)
        carried = values[:count]
        _gather(gathered, values[count:], wanted[count:])
        iteration += 1
    axes, first = [0] * len(gathered[pushes:]), count + pushes
    rows = _joined(gathered[pushes:], wanted[first:], axes, types[first:], device)
    return [*carried, *gathered[:pushes], *rows][: len(wanted)]


def _gather(gathered: list[list[Tensor]], values: Sequence[Tensor], wanted: Sequence[bool]) -> None:
    """Add what one iteration gave to the lists of what is wanted; nodes may have fewer outputs."""
    for items, value, asked in zip(gathered, values, wanted, strict=False):
        if asked:
            items.append(value)


def _joined(
    gathered: Sequence[list[Tensor]],
    wanted: Sequence[bool],
    axes: Sequence[int],
    types: Types,
    device: torch.device,
) -> list[Any]:
    """The lists stacked along their axes; without iterations, empty tensors of the known sizes."""
    return [
        None if not asked else _stacked(items, axis) if items else _empty(type_, axis, device)
        for items, asked, axis, type_ in zip(gathered, wanted, axes, types, strict=True)
    ]


def _stacked(items: Sequence[Any], axis: int) -> Any:
    if isinstance(items[0], np.ndarray):
        return np.stack(items, axis)
    return torch.stack(tuple(items), axis)


def _empty(
    type_: tuple[int, tuple[int | None, ...] | None], axis: int, device: torch.device
) -> Any:
    """No elements along an axis; sizes that the graph does not tell are 0 as well."""
    dtype, dims = type_
    sizes = [size or 0 for size in dims or (0,)]
    sizes[axis] = 0
    if dtype == DataType.STRING:
        return np.empty(sizes, object)
    return torch.empty(sizes, dtype=to_torch(dtype), device=device)


@kernel("Scan", since=9, outputs=0, needs=["wanted", "out_types", "device"])
def scan(
    *initial_state_and_scan_inputs: Any,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] = (),
    scan_input_directions: Sequence[int] = (),
    scan_output_axes: Sequence[int] = (),
    scan_output_directions: Sequence[int] = (),
    wanted: tuple[bool, ...],
    out_types: Types,
    device: torch.device,
) -> Sequence[Any]:
    """States after walking along the scan inputs, and what each step gave, stacked.

    Direction 1 walks (or stacks) from the end to the start.
    """
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    states: Sequence[Any] = initial_state_and_scan_inputs[:count]
    outputs = len(wanted) - count
    slices = [
        _slices(x, axis, direction)
        for x, axis, direction in zip(
            initial_state_and_scan_inputs[count:],
            _each(scan_input_axes, num_scan_inputs),
            _each(scan_input_directions, num_scan_inputs),
            strict=True,
        )
    ]
    states, gathered = _walk(body, states, slices, wanted[count:])
    for items, direction in zip(gathered, _each(scan_output_directions, outputs), strict=True):
        if direction:
            items.reverse()
    axes = _each(scan_output_axes, outputs)
    return [*states, *_joined(gathered, wanted[count:], axes, out_types[count:], device)]


def _each(values: Sequence[int], count: int) -> Sequence[int]:
    """An attribute with one number for each value, all 0 by default."""
    if values and len(values) != count:
        raise ValueError(f"{len(values)} axes or directions for {count} scanned values")
    return values or [0] * count


def _slices(x: Tensor, axis: int, direction: int) -> Sequence[Tensor]:
    parts = x.unbind(axis_of(axis, x.ndim))
    return parts[::-1] if direction else parts


def _walk(
    body: Body,
    states: Sequence[Any],
    slices: Sequence[Sequence[Tensor]],
    wanted: Sequence[bool],
) -> tuple[Sequence[Any], list[list[Tensor]]]:
    """Call the body on each row of slices: the last states, and lists of the other results."""
    if len({len(parts) for parts in slices}) > 1:
        raise ValueError(f"scan inputs have different lengths {[len(p) for p in slices]}")
    gathered: list[list[Tensor]] = [[] for _ in wanted]
    for row in zip(*slices, strict=True):
        values = body(*states, *row)
        _gather(gathered, values[len(states) :], wanted)
        states = values[: len(states)]
    return states, gathered


@kernel("Scan", since=8, until=8, host=["sequence_lens"], outputs=0, needs=["wanted", "out_types"])
def scan_8(
    sequence_lens: Any = None,
    *initial_state_and_scan_inputs: Tensor,
    body: Body,
    directions: Sequence[int] = (),
    num_scan_inputs: int,
    wanted: tuple[bool, ...],
    out_types: Types,
) -> Sequence[Any]:
    """A scan of each element of a batch, up to its own length; the rest of the output is 0."""
    count = len(initial_state_and_scan_inputs) - num_scan_inputs
    first = initial_state_and_scan_inputs[count]
    batch, longest = first.shape[:2]
    types = [(dtype, dims and dims[1:]) for dtype, dims in out_types[count:]]
    results = []
    for index in range(batch):
        length = longest if sequence_lens is None else sequence_lens[index]
        rows = [value[index] for value in initial_state_and_scan_inputs]
        walks = zip(rows[count:], _each(directions, num_scan_inputs), strict=True)
        slices = [_slices(x[:length], 0, direction) for x, direction in walks]
        states, gathered = _walk(body, rows[:count], slices, wanted[count:])
        axes = [0] * len(gathered)
        joined = _joined(gathered, wanted[count:], axes, types, first.device)
        results.append([*states, *(_padded(value, longest) for value in joined)])
    columns = zip(*results, strict=True)
    return [None if column[0] is None else torch.stack(column) for column in columns]


def _padded(value: Tensor | None, length: int) -> Tensor | None:
    """The value with zeros after it up to a length along the first axis."""
    if value is None or len(value) == length:
        return value
    padded = value.new_zeros((length, *value.shape[1:]))
    padded[: len(value)] = value
    return padded


@kernel("SequenceMap", since=17, outputs=0, needs=["wanted"])
def sequence_map(
    input_sequence: Sequence[Any],
    *additional_inputs: Any,
    body: Body,
    wanted: tuple[bool, ...],
) -> Sequence[Any]:
    """The body's results for each element, as sequences; additional tensors are the same for all.

    Additional sequences go along element by element.
    """
    count = len(input_sequence)
    for other in additional_inputs:
        if isinstance(other, list) and len(other) != count:
            raise ValueError(f"sequences of {count} and of {len(other)} elements")
    columns: list[list[Any]] = [[] for _ in wanted]
    for index, item in enumerate(input_sequence):
        others = [x[index] if isinstance(x, list) else x for x in additional_inputs]
        for column, value in zip(columns, body(item, *others), strict=True):
            column.append(value)
    return columns
