"""Gradients of activations, softmax and dropout; all have the shape of the incoming gradient."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import UINT32, op, optional, required
from onnxtrain.graph.schemas.facts import Facts, Shape
from onnxtrain.graph.schemas.infer import flag, last_of, normalize, of, same_as, shape_of, typed
from onnxtrain.types import BOOL, FLOATS, OWN


def halved(facts: Facts, output: int) -> Shape | None:
    """The shape of X, half as long along the axis."""
    x = facts.shape(0)
    axis = None if x is None else normalize(facts.integer("axis"), len(x))
    if x is None or axis is None:
        return x
    size = x[axis]
    return (*x[:axis], size // 2 if isinstance(size, int) else None, *x[axis + 1 :])


OPS = (
    op("ReluGrad", "dY: T, X: T -> dX: T", T=FLOATS, infer=same_as(0)),
    op("LeakyReluGrad", "dY: T, Y: T -> dX: T", T=FLOATS, alpha=0.01, infer=same_as(0)),
    op("SigmoidGrad", "dY: T, Y: T -> dX: T", T=FLOATS, infer=same_as(0)),
    op("TanhGrad", "dY: T, Y: T -> dX: T", T=FLOATS, infer=same_as(0)),
    op("GeluGrad", "dY: T, X: T -> dX: T", T=FLOATS, infer=same_as(0)),
    op("FastGeluGrad", "dY: T, X: T -> dX: T", T=FLOATS, infer=same_as(0)),
    op(
        "GeluGradSum",
        "dY: T, X: T -> dX: T, sums: T",
        domain=OWN,
        T=FLOATS,
        approximate="none",
        infer=(same_as(0), last_of(0)),
    ),
    op(
        "Gated",
        "gate: T, up: T -> Y: T",
        domain=OWN,
        T=FLOATS,
        activation="gelu",
        alpha=1.702,
        infer=same_as(0),
    ),
    op(
        "GatedGrad",
        "dY: T, gate: T, up: T -> gate_grad: T, up_grad: T",
        domain=OWN,
        T=FLOATS,
        activation="gelu",
        alpha=1.702,
        infer=(same_as(1), same_as(2)),
    ),
    op(
        "GatedHalves",
        "X: T -> Y: T",
        domain=OWN,
        T=FLOATS,
        axis=-1,
        gate=0,
        activation="gelu",
        alpha=1.702,
        infer=typed(of(0), halved),
    ),
    op(
        "GatedHalvesGrad",
        "dY: T, X: T -> dX: T",
        domain=OWN,
        T=FLOATS,
        axis=-1,
        gate=0,
        activation="gelu",
        alpha=1.702,
        infer=same_as(1),
    ),
    op("QuickGeluGrad", "dY: T, X: T -> dX: T", T=FLOATS, alpha=1.702, infer=same_as(0)),
    op("BiasGeluGrad_dX", "dY: T, X: T, B: T -> dX: T", T=FLOATS, infer=same_as(0)),
    op("BiasFastGeluGrad_dX", "dY: T, X: T, B: T -> dX: T", T=FLOATS, infer=same_as(0)),
    op("SoftmaxGrad", "dY: T, Y: T -> dX: T", T=FLOATS, axis=1, infer=same_as(0)),
    op("SoftmaxGrad_13", "dY: T, Y: T -> dX: T", T=FLOATS, axis=-1, infer=same_as(0)),
    op("LogSoftmaxGrad", "dY: T, X: T -> dX: T", T=FLOATS, axis=1, infer=same_as(0)),
    op("LogSoftmaxGrad_13", "dY: T, X: T -> dX: T", T=FLOATS, axis=-1, infer=same_as(0)),
    op(
        "DropoutGradSum",
        "dy: T, mask: T2, ratio?: T1, training_mode?: T2 -> dx: T, sums: T",
        domain=OWN,
        T=FLOATS,
        T1=FLOATS,
        T2=BOOL,
        infer=(same_as(0), last_of(0)),
    ),
    op(
        "DropoutGrad",
        "dy: T, mask: T2, ratio?: T1, training_mode?: T2 -> dx: T",
        T=FLOATS,
        T1=FLOATS,
        T2=BOOL,
        seed=optional("int"),
        infer=same_as(0),
    ),
    op(
        "BitmaskDropoutGrad",
        "dy: T, mask: T3, ratio?: T1, training_mode?: T2 -> dx: T",
        T=FLOATS,
        T1=FLOATS,
        T2=BOOL,
        T3=UINT32,
        seed=optional("int"),
        infer=same_as(0),
    ),
    op(
        "BiasSoftmaxDropout",
        "data: T, bias: T, ratio?: T1 -> dropout_output: T, mask: bool, softmax_output: T",
        T=FLOATS,
        T1=FLOATS,
        axis=1,
        is_inner_broadcast=required("int"),
        seed=optional("int"),
        infer=(same_as(0), flag(shape_of(0)), same_as(0)),
    ),
    op(
        "SoftmaxDropoutGrad",
        "dy: T, mask: bool, softmax_y: T, ratio?: T1 -> dx: T",
        T=FLOATS,
        T1=FLOATS,
        axis=required("int"),
        infer=same_as(0),
    ),
)
