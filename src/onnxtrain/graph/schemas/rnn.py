"""Recurrent layers that keep what their gradients need, and those gradients.

Shapes: X [S, B, I], states [D, B, H], all states [S, D, B, H]; D is 2 if bidirectional, else 1.
"""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import INT32, UINT8, Attributes, op, optional
from onnxtrain.graph.schemas.facts import Dim, Facts, Shape
from onnxtrain.graph.schemas.infer import Dims, any_shape, at, fixed, of, same_as, times, typed
from onnxtrain.types import FLOATS, OWN, DataType

FLOAT = frozenset({DataType.FLOAT})
RECURRENT: Attributes = {
    "activations": optional("strings"),
    "activation_alpha": optional("floats"),
    "activation_beta": optional("floats"),
    "clip": optional("float"),
    "direction": "forward",
    "hidden_size": optional("int"),
}


def hidden(facts: Facts) -> Dim:
    """H: the attribute, else the last dimension of R."""
    return facts.integer("hidden_size") or at(facts.shape(2), -1)


def directions(facts: Facts) -> int:
    """D."""
    return 2 if facts.text("direction") == "bidirectional" else 1


def every_step(gates: int) -> Dims:
    """[S, D, B, gates * H]."""

    def dims(facts: Facts, output: int) -> Shape:
        x = facts.shape(0)
        width = times(hidden(facts), gates) if gates > 1 else hidden(facts)
        return at(x, 0), directions(facts), at(x, 1), width

    return dims


def state(facts: Facts, output: int) -> Shape:
    """[D, B, H]."""
    return directions(facts), at(facts.shape(0), 1), hidden(facts)


def vectors(count: int) -> Dims:
    """[D, count * H]."""
    return lambda facts, output: (directions(facts), times(hidden(facts), count))


STATE = typed(of(0), state)
ALL_STATES = typed(of(0), every_step(1))
BYTES = typed(fixed(DataType.UINT8), any_shape)

OPS = (
    op(
        "LSTMTraining",
        "X: T, W: T, R: T, B?: T, SL?: TSize, Ht0?: T, Ct0?: T, P?: T -> "
        "HAll?: T, HFinal?: T, CFinal?: T, CAll?: T, iofc?: T",
        T=FLOATS,
        TSize=INT32,
        attributes=RECURRENT,
        input_forget=0,
        infer=(ALL_STATES, STATE, STATE, ALL_STATES, typed(of(0), every_step(4))),
    ),
    op(
        "LSTMLayer",
        "X: T, W: T, R: T, B?: T, H0?: T, C0?: T -> "
        "HAll: T, HFinal: T, CFinal: T, kept: T1, kept_too: T1",
        domain=OWN,
        T=FLOAT,
        T1=UINT8,
        direction="forward",
        infer=(ALL_STATES, STATE, STATE, BYTES, BYTES),
    ),
    op(
        "LSTMLayerGrad",
        "X: T, W: T, R: T, B?: T, H0?: T, C0?: T, HAll: T, HFinal: T, CFinal: T, kept: T1, "
        "kept_too: T1, dHAll?: T, dHFinal?: T, dCFinal?: T -> "
        "dX?: T, dW?: T, dR?: T, dB?: T, dH0?: T, dC0?: T",
        domain=OWN,
        T=FLOAT,
        T1=UINT8,
        direction="forward",
        infer=(
            same_as(0),
            same_as(1),
            same_as(2),
            typed(of(0), vectors(8)),
            STATE,
            STATE,
        ),
    ),
    op(
        "LSTMGrad",
        "X: T, W: T, R: T, SL?: TSize, Ht0?: T, Ct0?: T, HAll?: T, CAll?: T, iofc?: T, "
        "dHAll?: T, dHFinal?: T, dCFinal?: T, P?: T -> "
        "dX?: T, dW?: T, dR?: T, dB?: T, dH0?: T, dC0?: T, dP?: T",
        T=FLOATS,
        TSize=INT32,
        attributes=RECURRENT,
        input_forget=0,
        infer=(
            same_as(0),
            same_as(1),
            same_as(2),
            typed(of(0), vectors(8)),
            STATE,
            STATE,
            typed(of(0), vectors(3)),
        ),
    ),
    op(
        "GRUTraining",
        "X: T, W: T, R: T, B?: T, SL?: TSize, Ht0?: T -> HAll?: T, HFinal?: T, ZRH?: T",
        T=FLOATS,
        TSize=INT32,
        attributes=RECURRENT,
        linear_before_reset=0,
        infer=(ALL_STATES, STATE, typed(of(0), every_step(3))),
    ),
    op(
        "GRUGrad",
        "X: T, W: T, R: T, B?: T, SL?: TSize, Ht0?: T, HAll?: T, ZRH?: T, dHAll?: T, dHFinal?: T"
        " -> dX?: T, dW?: T, dR?: T, dB?: T, dH0?: T",
        T=FLOATS,
        TSize=INT32,
        attributes=RECURRENT,
        linear_before_reset=0,
        infer=(same_as(0), same_as(1), same_as(2), typed(of(0), vectors(6)), STATE),
    ),
)
