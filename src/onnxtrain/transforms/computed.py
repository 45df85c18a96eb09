"""Parameters of which a file only has what an exporter computed from them.

A sum of two tables, a weight of which the length is another parameter, the exponential of a
number: where sizes are fixed, torch's exporter stores the result, and the parameters are gone.
Results can be trained, but not as the module trains its parameters.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.graph.traced import moves, parameters, sources, stem
from onnxtrain.transforms.parameters import Decision

_JOINED = frozenset({"cat", "stack"})
"""Calls whose results have the numbers of all that they are given."""
_SHIFTED = frozenset({"add", "sub"})
"""Calls whose results have the gradients of what they are given, if the rest is constant."""
_INSIDE = "val"
"""What tensors are called that one call, such as that of a layer, made of its own parameters."""
_MOST = 8
"""How many of them a message names."""


def warn_of_computed(
    model: ir.Model, decisions: Sequence[Decision], numbers: bool, level: int
) -> None:
    """Warn of tensors that are trained, or left alone as numbers, in the place of parameters.

    Args:
        model: The prepared model.
        decisions: Which of its tensors are trained.
        numbers: Whether single numbers count, too, that are not trained.
        level: How many callers there are between this function and the user.
    """
    known = set(parameters(model.graph).values())
    values = model.graph.initializers
    made = collections.Counter(n for d in decisions for n in {d.name, *sources(values[d.name])})
    found = []
    for decision in decisions if known else ():
        number = numbers and decision.reason.startswith("single number")
        if not decision.trained and not number:
            continue
        names = [name for name in sources(values[decision.name]) if name in known]
        again = any(made[name] > 1 for name in names)
        if names and not _keeps(decision.name, len(names), again):
            found.append(f"'{decision.name}' from {', '.join(map(repr, names))}")
    if not found:
        return
    shown = "".join(f"\n  {line}" for line in found[:_MOST])
    more = f"\n  and {len(found) - _MOST} more" if len(found) > _MOST else ""
    warnings.warn(
        "torch's exporter computed tensors from parameters that the file does not have any more; "
        f"they are trained in another way than the module's parameters, or not at all{shown}{more}"
        "\n  export with dynamo=True and optimize=False to train the parameters themselves",
        stacklevel=level,
    )


def _keeps(name: str, count: int, again: bool) -> bool:
    """Whether a computed tensor has the gradients of so many parameters, as far as names tell.

    A parameter that is in the file again, in another form, has the gradients of both.
    """
    call = stem(name.rpartition(".")[2].removesuffix("_once").removesuffix("_once"))
    if call in _JOINED:
        return not again
    if count > 1:
        return call == _INSIDE
    return moves(call) or call == _INSIDE or (call in _SHIFTED and not again)
