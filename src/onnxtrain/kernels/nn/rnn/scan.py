"""Steps through time: directions, layouts, sequence lengths, and the products they share.

Everything here is [time, batch, ...]; gates are computed in float32 for 16-bit data, and products
in the data's own type on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.precision import acc, multiply, widen
from onnxtrain.kernels.products import of_rows

States = tuple[Tensor, ...]
Step = Callable[[Tensor, States], tuple[States, States]]
"""From a step's input and the old states to the new states and what to record."""

DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


def reversals(direction: str) -> list[bool]:
    """For each direction, whether it goes back in time."""
    if direction not in DIRECTIONS:
        raise ValueError(f"direction is '{direction}', must be one of {', '.join(DIRECTIONS)}")
    return DIRECTIONS[direction]


def time_first(x: Tensor, layout: int) -> Tensor:
    """Exchange batch and the axis beside it if the layout has the batch first."""
    return x.transpose(0, 1) if layout else x


def factor(w: Tensor) -> Tensor:
    """A tensor as products take it: its own type on CUDA, the type of computation on a CPU."""
    return w if w.is_cuda else widen(w)


def projected(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """x @ w^T + bias for all times at once, in the type in which products are."""
    w = factor(w)
    return multiply(of_rows, x.to(w.dtype), w.mT, None if bias is None else bias.to(w.dtype))


def product(x: Tensor, w: Tensor) -> Tensor:
    """x @ w^T in the weight's type, handed on in the type of computation."""
    return multiply(of_rows, x.to(w.dtype), w.mT).to(acc(w.dtype))


def back(da: Tensor, w: Tensor) -> Tensor:
    """da @ w in the weight's type: the gradient of a product in what was multiplied with w^T."""
    return multiply(of_rows, da.to(w.dtype), w)


def start(state: Tensor | None, direction: int, like: Tensor, hidden: int) -> Tensor:
    """The initial state [batch, hidden], zeros by default."""
    if state is None:
        return like.new_zeros((like.shape[1], hidden), dtype=acc(like.dtype))
    return widen(state[direction])


def scan(
    step: Step, inputs: Tensor, states: States, *, reverse: bool = False, lens: Tensor | None = None
) -> tuple[list[States], States]:
    """Run a step over time; returns the records in the order of time, and the last states.

    Behind the end of a sequence the states stay as they are and the records are 0.
    """
    records: list[States] = []
    times = range(inputs.shape[0])
    for time in reversed(times) if reverse else times:
        new, record = step(inputs[time], states)
        if lens is not None:
            live = (time < lens).unsqueeze(-1)
            new = tuple(torch.where(live, n, o) for n, o in zip(new, states, strict=True))
            record = tuple(torch.where(live, item, 0.0) for item in record)
        states = new
        records.append(record)
    return records[::-1] if reverse else records, states


def sequence(records: Sequence[States], index: int, like: Tensor, hidden: int) -> Tensor:
    """One kind of record at every time: [time, batch, hidden]."""
    if not records:
        return like.new_zeros((0, like.shape[1], hidden), dtype=acc(like.dtype))
    return torch.stack([record[index] for record in records])


def beside(every: Sequence[Tensor]) -> Tensor:
    """Sequences [time, batch, ...] of all directions: [time, direction, batch, ...]."""
    return torch.stack([*every], 1) if len(every) > 1 else every[0].unsqueeze(1)


def outputs(
    every: Sequence[Tensor], finals: Sequence[States], layout: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Y [time, direction, batch, hidden] and each final state [direction, batch, hidden]."""
    y = beside(every).to(dtype)
    states = [torch.stack(kind).to(dtype) for kind in zip(*finals, strict=True)]
    if layout:
        y = y.permute(2, 0, 1, 3).contiguous()
        states = [state.transpose(0, 1).contiguous() for state in states]
    return (y, *states)


def refuse(
    lens: Tensor | None,
    clip: float | None,
    activations: Sequence[str] | None,
    default: Sequence[str],
) -> None:
    """Refuse what the layers with a gradient do not know."""
    if lens is not None:
        raise ValueError("sequence lengths input tensor is not supported by layers with a gradient")
    if clip is not None:
        raise ValueError("clip is not supported by layers with a gradient")
    names = [name.lower() for name in activations or default]
    if names != list(default) * (len(names) // len(default)):
        raise ValueError(f"activations are {names}, layers with a gradient know {list(default)}")


def check_weights(w: Tensor, r: Tensor, gates: int) -> None:
    """Refuse weights whose rows are not one block of the hidden size for each gate."""
    rows = gates * r.shape[-1]
    for name, weights in (("W", w), ("R", r)):
        if weights.ndim != 3 or weights.shape[1] != rows:
            raise ValueError(
                f"Input {name} must have shape [directions, {rows}, ...], "
                f"got {tuple(weights.shape)}"
            )


def turned(reverse: bool) -> Callable[[Tensor], Tensor]:
    """Brings a sequence [time, ...] into the order in which a direction runs, and back."""
    return (lambda x: x.flip(0)) if reverse else (lambda x: x)


def weight_grad(da: Tensor, x: Tensor) -> Tensor:
    """Sum of da^T x over time and batch, as one product."""
    seen = factor(x).flatten(0, 1)
    return of_rows(da.to(seen.dtype).flatten(0, 1).mT, seen)


def before(first: Tensor, every: Tensor) -> Tensor:
    """States before each time and behind the last, from the first one and those behind each."""
    return torch.cat([first[None].to(every.dtype), every])


def gradients(
    made: Sequence[tuple[Tensor | None, ...]], dtype: torch.dtype
) -> tuple[Tensor | None, ...]:
    """Gradients of all directions: that of X is their sum, the others are one beside another."""
    inputs = [one[0] for one in made if one[0] is not None]
    dx = sum(map(widen, inputs[1:]), inputs[0]).to(dtype) if inputs else None
    rest = [[t for t in kind if t is not None] for kind in list(zip(*made, strict=True))[1:]]
    return (dx, *(torch.stack(kind).to(dtype) if kind else None for kind in rest))
