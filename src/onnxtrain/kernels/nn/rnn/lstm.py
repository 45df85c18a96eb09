"""LSTM with every option of ONNX.

Gates are ordered i, o, f, c in W, R and B; peepholes i, o, f in P.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from onnxtrain.kernels.nn.rnn import activation, onednn, scan
from onnxtrain.kernels.nn.rnn.quickest import is_plain, quickest
from onnxtrain.kernels.precision import widen
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS

DEFAULT = ("sigmoid", "tanh", "tanh")


@kernel("LSTM", outputs=3, T=FLOATS)
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    output_sequence: int = 0,
) -> tuple[Tensor, ...]:
    """C' = f * C + i * g(..); h = o * H(C'), with gates i, o, f = F(x W^T + h R^T + P C + B)."""
    return run(
        x,
        w,
        r,
        b,
        sequence_lens,
        initial_h,
        initial_c,
        p,
        activation_alpha=activation_alpha,
        activation_beta=activation_beta,
        activations=activations,
        clip=clip,
        direction=direction,
        input_forget=input_forget,
        layout=layout,
    )


def run(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    p: Tensor | None,
    *,
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    activations: Sequence[str] | None,
    clip: float | None,
    direction: str,
    input_forget: int,
    layout: int = 0,
    read: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """The layer; ``read`` is applied to what is multiplied with w and r, if it is given."""
    x = scan.time_first(x, layout)
    states = [None if s is None else scan.time_first(s, layout) for s in (initial_h, initial_c)]
    hidden = r.shape[-1]
    reversals = scan.reversals(direction)
    functions = activation.functions(
        activations, DEFAULT, len(reversals), activation_alpha, activation_beta
    )
    seen = x if read is None else read(x)
    quick = None
    if not (input_forget or p is not None or read is not None):
        plain = is_plain(activations, DEFAULT, clip, sequence_lens)
        quick = quickest(x, r, w, b, *states) if plain else None
    every, finals = [], []
    for d, reverse in enumerate(reversals):
        if quick is not None:
            first = tuple(scan.start(state, d, x, hidden) for state in states)
            if onednn.takes(x, r):
                weights = onednn.layer(w[d], r[d], pick(b, d))
                steps, *last_ones, _ = onednn.forward(
                    x, weights, first, reverse=reverse, keep=False
                )
                every.append(steps)
                finals.append(tuple(last_ones))
                continue
            inputs = projected(x, w[d], pick(b, d))
            ran = quick.lstm(inputs, r[d], first, reverse=reverse, keep=False)
            every.append(ran.every)
            finals.append(ran.last)
            continue
        step = cell(r[d], pick(p, d), functions[d], activation.clipped(clip), input_forget)
        step = step if read is None else reading(step, read)
        first = tuple(scan.start(state, d, x, hidden) for state in states)
        records, last = scan.scan(
            step, projected(seen, w[d], pick(b, d)), first, reverse=reverse, lens=sequence_lens
        )
        every.append(scan.sequence(records, 0, x, hidden))
        finals.append(last)
    return scan.outputs(every, finals, layout, x.dtype)


def reading(step: scan.Step, read: Callable[[Tensor], Tensor]) -> scan.Step:
    """A step that sees the hidden state through a function."""

    def changed(x: Tensor, states: scan.States) -> tuple[scan.States, scan.States]:
        return step(x, (read(states[0]), *states[1:]))

    return changed


def pick(value: Tensor | None, direction: int) -> Tensor | None:
    """One direction of an optional input."""
    return None if value is None else value[direction]


def projected(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x W^T and both biases, for all times at once."""
    return scan.projected(x, w, None if b is None else torch.add(*widen(b).chunk(2)))


def cell(
    r: Tensor,
    p: Tensor | None,
    functions: Sequence[activation.Activation],
    bound: activation.Activation,
    input_forget: int = 0,
    *,
    keep_gates: bool = False,
) -> scan.Step:
    """One step: states and the record are (h, C); the gates i, o, f, c follow if they are kept."""
    recurrent = scan.factor(r)
    peep_i, peep_o, peep_f = (None, None, None) if p is None else widen(p).chunk(3)
    f, g, h = functions

    def step(x: Tensor, states: scan.States) -> tuple[scan.States, scan.States]:
        hidden, memory = states
        i, o, forget, c = (x + scan.product(hidden, recurrent)).chunk(4, -1)
        i = f(bound(_peeped(i, peep_i, memory)))
        forget = 1 - i if input_forget else f(bound(_peeped(forget, peep_f, memory)))
        c = g(bound(c))
        memory = forget * memory + i * c
        o = f(bound(_peeped(o, peep_o, memory)))
        new = o * h(memory), memory
        return new, (*new, torch.cat([i, o, forget, c], -1)) if keep_gates else new

    return step


def _peeped(gate: Tensor, peephole: Tensor | None, memory: Tensor) -> Tensor:
    return gate if peephole is None else gate + peephole * memory
