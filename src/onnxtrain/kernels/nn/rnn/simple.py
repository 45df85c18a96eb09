"""The simple recurrent layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from onnxtrain.kernels.nn.rnn import activation, scan
from onnxtrain.kernels.nn.rnn.lstm import pick, projected
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import FLOATS

DEFAULT = ("tanh",)


@kernel("RNN", outputs=2, T=FLOATS)
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    output_sequence: int = 0,
) -> tuple[Tensor, ...]:
    """h' = F(x W^T + h R^T + B), for every time."""
    x = scan.time_first(x, layout)
    state = None if initial_h is None else scan.time_first(initial_h, layout)
    hidden = r.shape[-1]
    reversals = scan.reversals(direction)
    functions = activation.functions(
        activations, DEFAULT, len(reversals), activation_alpha, activation_beta
    )
    every, finals = [], []
    for d, reverse in enumerate(reversals):
        step = _cell(r[d], functions[d][0], activation.clipped(clip))
        inputs = projected(x, w[d], pick(b, d))
        first = (scan.start(state, d, x, hidden),)
        records, last = scan.scan(step, inputs, first, reverse=reverse, lens=sequence_lens)
        every.append(scan.sequence(records, 0, x, hidden))
        finals.append(last)
    return scan.outputs(every, finals, layout, x.dtype)


def _cell(r: Tensor, f: activation.Activation, bound: activation.Activation) -> scan.Step:
    recurrent = scan.factor(r)

    def step(x: Tensor, states: scan.States) -> tuple[scan.States, scan.States]:
        new = (f(bound(x + scan.product(states[0], recurrent))),)
        return new, new

    return step
