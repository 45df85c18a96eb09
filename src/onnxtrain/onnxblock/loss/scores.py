"""Losses of raw scores that are given what an activation made of them."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import warnings

import onnx

from onnxtrain.transforms.probabilities import source_of_probabilities
from onnxtrain.transforms.weights.places import MOVERS
from onnxtrain.types import ONNX, op_name

_MOVERS = MOVERS | {"Flatten"}
_INSIDE = (str(pathlib.Path(__file__).parents[2]), contextlib.__file__)
"""Where code is that is not the user's: the package, and what wraps its functions."""


def warn_of_activation(model: onnx.ModelProto, scores: str, op_type: str, loss: str) -> None:
    """Warn if a loss that takes raw scores gets what its own activation made of them.

    Args:
        model: The model with the scores.
        scores: What the loss is given.
        op_type: The activation that the loss has inside.
        loss: Name of the loss.
    """
    node = _maker(model, scores)
    if node is None or node.op_type != op_type or node.domain not in (ONNX, "ai.onnx"):
        return
    before = node.input[0]
    which = f"node '{node.name}' ({op_type})" if node.name else f"the {op_type} of '{before}'"
    warnings.warn(
        f"{loss} takes raw scores and has a {op_type} of its own, but what it is given comes out "
        f"of {which}; training is slow and less exact\n"
        f"  give it '{before}' (outputs of Trainer, loss_input_names of generate_artifacts, "
        f"--output of fit), or export the model without its last {op_type}",
        stacklevel=_user_level() + 1,
    )


def warn_of_probabilities(model: onnx.ModelProto, scores: str, loss: str, right: str) -> None:
    """Warn if a loss that takes raw scores gets what a classical model calls probabilities.

    Args:
        model: The model with the scores.
        scores: What the loss is given.
        loss: Name of the loss.
        right: Name of the one that takes probabilities.
    """
    node = _maker(model, scores)
    if node is None:
        return
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    texts = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
    source = source_of_probabilities(node.domain, node.op_type, texts)
    if source is not None:
        warnings.warn(
            f"{loss} takes raw scores, but '{scores}' has probabilities, as node '{node.name}' "
            f"({op_name(*source)}) gives them; training is slow "
            f"and less exact\n  the loss of probabilities is {right}",
            stacklevel=_user_level() + 1,
        )


def _maker(model: onnx.ModelProto, name: str) -> onnx.NodeProto | None:
    """The node that computed a value, behind those that only move its numbers."""
    makers = {output: node for node in model.graph.node for output in node.output}
    node = makers.get(name)
    while node is not None and node.op_type in _MOVERS and node.domain in (ONNX, "ai.onnx"):
        node = makers.get(node.input[0])
    return node


def _user_level() -> int:
    """How many callers there are between the caller of this function and the user's code."""
    frame, level = sys._getframe(1), 0
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    return level
