"""Weights on which the loss does not depend in a way that has a gradient."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Sequence

import onnx_ir as ir

from onnxtrain.transforms.weights.parameters import UNREACHED, Decision
from onnxtrain.transforms.weights.reached import leads_to

_MOST = 8
"""How many of them a warning names."""


def settle(decisions: Sequence[Decision], trained: Collection[str]) -> list[Decision]:
    """The decisions after the gradients were built, which may not have reached all weights."""
    found = set(trained)
    return [
        dataclasses.replace(d, trained=False, reason=UNREACHED, lost=True)
        if d.trained and d.name not in found
        else d
        for d in decisions
    ]


def leading_nowhere(model: ir.Model, decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions, of which weights that other outputs depend on are not lost.

    For a loss whose outputs were chosen: the weights of others were left out with them.
    """
    needed = leads_to(model.graph, None)
    values = model.graph.initializers
    return [
        dataclasses.replace(d, lost=False) if d.lost and values[d.name] in needed else d
        for d in decisions
    ]


def settled(
    decisions: Sequence[Decision], trained: Collection[str], outputs: Sequence[str], level: int
) -> list[Decision]:
    """The decisions after the gradients were built, with a warning of what these did not reach.

    Args:
        decisions: Which tensors were to be trained.
        trained: Those that are.
        outputs: Outputs that the loss takes.
        level: How many callers there are between this function and the user.
    """
    made = settle(decisions, trained)
    warn_of_lost(made, outputs, level + 1)
    return made


def warn_of_lost(decisions: Sequence[Decision], outputs: Sequence[str], level: int) -> None:
    """Warn of weights that are not trained since the loss does not depend on them.

    Args:
        decisions: Which tensors are trained.
        outputs: Outputs that the loss takes.
        level: How many callers there are between this function and the user.
    """
    names = [repr(d.name) for d in decisions if d.lost]
    if names:
        more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
        taken = ", ".join(map(repr, outputs))
        warnings.warn(
            "weights that no gradient of the loss reaches are not trained: "
            f"{', '.join(names[:_MOST])}{more}\n"
            f"  the loss takes {taken}; what other outputs depend on, what is detached, or what "
            "only shapes, comparisons and indices are made of, has no gradient of it",
            stacklevel=level,
        )
