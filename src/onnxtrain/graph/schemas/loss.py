"""Cross entropy and negative log likelihood, with their gradients."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import INT64, op, optional
from onnxtrain.graph.schemas.facts import Facts, Shape
from onnxtrain.graph.schemas.infer import Dims, from_attribute, of, same_as, shape_of, typed
from onnxtrain.types import FLOATS, INTS, ONNX, OWN


def reduced_to(unreduced: Dims) -> Dims:
    """A scalar, or the given shape if reduction is ``none``."""

    def dims(facts: Facts, output: int) -> Shape | None:
        return unreduced(facts, output) if facts.text("reduction") == "none" else ()

    return dims


def samples(facts: Facts, output: int) -> Shape | None:
    """logits.shape[:-1]."""
    shape = facts.shape(0)
    return None if shape is None else shape[:-1]


LABELS = reduced_to(shape_of(1))
LIKELIHOOD = "input: T, target: Tind, weight?: T, ignore_index?: I -> loss: T"

OPS = (
    op(
        "SoftmaxCrossEntropy",
        "logits: T, label: T -> Y: T, log_prob?: T",
        T=FLOATS,
        reduction="mean",
        infer=(typed(of(0), reduced_to(samples)), same_as(0)),
    ),
    op(
        "SoftmaxCrossEntropyGrad",
        "dY: T, log_prob: T, label: T -> d_logits: T",
        T=FLOATS,
        reduction="mean",
        infer=same_as(1),
    ),
    op(
        "SparseSoftmaxCrossEntropy",
        "logits: T, label: Tind, weight?: T -> Y: T, log_prob?: T",
        domain=ONNX,
        since=9,
        T=FLOATS,
        Tind=INTS,
        reduction="mean",
        infer=(typed(of(0), LABELS), same_as(0)),
    ),
    op(
        "SparseSoftmaxCrossEntropyGrad",
        "dY: T, log_prob: T, label: Tind, weight?: T -> d_logits: T",
        domain=ONNX,
        since=9,
        T=FLOATS,
        Tind=INTS,
        reduction="mean",
        infer=same_as(1),
    ),
    op(
        "SoftmaxCrossEntropyLossGrad",
        "dY: T, log_prob: T, label: Tind, weight?: T -> d_logits: T",
        T=FLOATS,
        Tind=INTS,
        reduction="mean",
        ignore_index=optional("int"),
        infer=same_as(1),
    ),
    op(
        "SoftmaxCrossEntropyLossInternal",
        "scores: T, labels: Tind, weights?: T, ignore_index?: I -> output: TOut, log_prob: TOut",
        T=FLOATS,
        TOut=FLOATS,
        Tind=INTS,
        I=INT64,
        reduction="mean",
        output_type=optional("int"),
        infer=(
            typed(from_attribute("output_type", of(0)), LABELS),
            typed(from_attribute("output_type", of(0)), shape_of(0)),
        ),
    ),
    op(
        "SoftmaxCrossEntropyLossInternalGrad",
        "dY: T, log_prob: T, label: Tind, weight?: T, ignore_index?: I, bias?: TOut"
        " -> d_logits: TOut",
        T=FLOATS,
        TOut=FLOATS,
        Tind=INTS,
        I=INT64,
        reduction="mean",
        output_type=optional("int"),
        infer=typed(from_attribute("output_type", of(1)), shape_of(1)),
    ),
    op(
        "CrossEntropyWithGrad",
        "scores: T, labels: Tind, dY: TOut, weights?: T -> d_scores: T, loss: TOut",
        domain=OWN,
        T=FLOATS,
        TOut=FLOATS,
        Tind=INTS,
        ignore_index=-1,
        output_type=optional("int"),
        reduction="mean",
        infer=(same_as(0), typed(from_attribute("output_type", of(0)), LABELS)),
    ),
    op(
        "LinearCrossEntropyWithGrad",
        "x: T, w: T, labels: Tind, dY: TOut, bias?: T, weights?: T"
        " -> loss: TOut, d_x: T, d_w: T, d_bias?: T",
        domain=OWN,
        T=FLOATS,
        TOut=FLOATS,
        Tind=INTS,
        ignore_index=-1,
        output_type=optional("int"),
        reduction="mean",
        infer=(
            typed(from_attribute("output_type", of(0)), lambda facts, output: ()),
            same_as(0),
            same_as(1),
            same_as(4),
        ),
    ),
    op(
        "NegativeLogLikelihoodLossInternal",
        LIKELIHOOD,
        T=FLOATS,
        Tind=INTS,
        I=INT64,
        reduction="mean",
        infer=typed(of(0), LABELS),
    ),
    op(
        "NegativeLogLikelihoodLossInternal2",
        LIKELIHOOD,
        T=FLOATS,
        Tind=INTS,
        I=INT64,
        reduction="mean",
        infer=typed(of(0), LABELS),
    ),
)
