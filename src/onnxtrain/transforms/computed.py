"""Parameters of which a file only has what an exporter computed from them.

A sum of two tables, a weight of which the length is another parameter, the exponential of a
number: where sizes are fixed, torch's exporter stores the result, and the parameters are gone.
Results can be trained, but not as the module trains its parameters.
"""

from __future__ import annotations

import collections
import re
import warnings
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from onnxtrain.graph.constants import is_uniform
from onnxtrain.graph.traced import JOINED, calls, moves, one_place, sources, stem, tensors
from onnxtrain.transforms.parameters import Decision
from onnxtrain.transforms.resized import is_enlarged

_SHIFTED = frozenset({"add", "neg", "sub"})
"""Calls whose results have the gradients of what they are given, if the rest is constant."""
_LEARNED = frozenset({
    *("addmm", "baddbmm", "bmm", "conv1d", "conv2d", "einsum", "gelu", "group_norm", "layer_norm"),
    *("linalg_vector_norm", "linear", "matmul", "mm", "relu", "rms_norm", "sigmoid", "silu"),
    *("scaled_dot_product_attention", "softmax", "softplus", "tanh"),
})  # fmt: skip
"""Calls that compute with what is learned, not with places or constants."""
_ARITHMETIC = frozenset({
    *("abs", "amax", "clamp", "cos", "div", "exp", "log", "mean", "mul", "pow", "prod"),
    *("reciprocal", "rsqrt", "sin", "sqrt", "square", "std", "sum", "var"),
})  # fmt: skip
"""Calls that compute with either."""
_PLACES = frozenset({
    *("arange", "embedding", "full", "full_like", "gather", "index", "index_select", "linspace"),
    *("ones", "ones_like", "zeros", "zeros_like"),
})  # fmt: skip
"""Calls that are given places, or make them."""
_LOOKED_UP = "embedding"
"""How results are called that are rows of a table."""
_RESIZED = "upsample_"
"""How calls begin that give tables another size."""
_ADDED = re.compile(r"(_once|_rest(_\d+)?)+$")
"""What names of tensors end with that were made of others."""
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
    told = {name: kind for _, kind, name in tensors(model.graph)}
    values = model.graph.initializers
    made = collections.Counter(n for d in decisions for n in {d.name, *sources(values[d.name])})
    found = []
    for decision in decisions if told else ():
        number = numbers and decision.reason.startswith("single number")
        if not decision.trained and not number:
            continue
        value = values[decision.name]
        names = [name for name in sources(value) if told.get(name) == "PARAMETER"]
        again = any(made[name] > 1 for name in names)
        if names and (_computes(value, told) or not _keeps(decision.name, len(names), again)):
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


def _computes(value: ir.Value, told: Mapping[str, str]) -> bool:
    """Whether the exporter computed more than a last call on the way from parameters to a tensor.

    Numbers may have been computed for places in a table instead, or from buffers.
    """
    on_the_way = calls(value, told)
    if _is_one_row(value, told):
        return True
    if not _LEARNED.isdisjoint(on_the_way):
        return True
    if any(call.startswith(_RESIZED) for call in on_the_way):
        return value.const_value is not None and is_enlarged(value.const_value.numpy())
    others = any(told.get(name, "PARAMETER") != "PARAMETER" for name in sources(value))
    return not others and _PLACES.isdisjoint(on_the_way) and not _ARITHMETIC.isdisjoint(on_the_way)


def _is_one_row(value: ir.Value, told: Collection[str]) -> bool:
    """Whether rows of equal numbers that were looked up in a table may be the same one of it."""
    tensor = value.const_value
    if tensor is None or not str(value.name).startswith(_LOOKED_UP) or not is_uniform(tensor):
        return False
    sizes = tensor.shape.numpy()
    return tensor.size > sizes[-1] and one_place(value, told) is not False


def _keeps(name: str, count: int, again: bool) -> bool:
    """Whether a computed tensor has the gradients of so many parameters, as far as names tell.

    A parameter that is in the file again, in another form, has the gradients of both.
    """
    call = stem(_ADDED.sub("", name.rpartition(".")[2]))
    if call in JOINED:
        return not again
    if count > 1:
        return call == _INSIDE
    return moves(call) or call == _INSIDE or (call in _SHIFTED and not again)
