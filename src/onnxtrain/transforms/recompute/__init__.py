"""Values of the forward pass that the backward pass computes again instead of keeping them.

It costs time and saves memory; results are the same bit for bit. It runs when a step is planned,
behind all other transforms: files never have it.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxtrain.errors import OptionError
from onnxtrain.transforms.recompute.again import compute_again
from onnxtrain.transforms.recompute.forward import Forward, trained_inputs
from onnxtrain.transforms.recompute.kept import kept_values
from onnxtrain.transforms.recompute.segments import segments
from onnxtrain.transforms.recompute.table import is_cheap, is_repeatable

__all__ = ["CHEAP", "LAYERS", "WAYS", "recompute"]

CHEAP, LAYERS = "cheap", "layers"
WAYS = (CHEAP, LAYERS)
"""What may be computed again: what takes hardly any time, or all but what layers begin with."""


def recompute(model: ir.Model, way: str | None, trained: Collection[str] | None = None) -> int:
    """Let the backward pass compute values of the forward pass again, in place.

    Args:
        model: A training model, whose gradients are behind its losses or behind a YieldOp.
        way: ``cheap``, ``layers``, or None for nothing. Of a model that is not worth cutting, what
            is cheap is computed again.
        trained: Inputs that have gradients; None takes those whose gradients are added up.

    Returns:
        How many nodes are computed twice.

    Raises:
        OptionError: if there is no such way.
    """
    if way is None:
        return 0
    if way not in WAYS:
        raise OptionError(
            f"there is nothing called {way!r} to be computed again\n"
            f"  have  {', '.join(map(repr, WAYS))}, or None"
        )
    forward = Forward.of(model.graph)
    names = trained_inputs(model.graph) if trained is None else trained
    parts = segments(forward, names) if way == LAYERS else None
    if parts is None:
        return compute_again(forward, kept_values(forward, is_cheap))
    last = parts.last

    def again(value: ir.Value) -> bool:
        """The backward pass begins with the last part, which is not worth computing twice."""
        return is_cheap(value) if value.producer() in last else is_repeatable(value)

    return compute_again(forward, kept_values(forward, again, parts.alive))
