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

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import is_uniform
from onnxtrain.graph.edit import reads
from onnxtrain.graph.torch_export.detached import unclear_calls
from onnxtrain.graph.torch_export.lost import merged_names
from onnxtrain.graph.torch_export.scaled import scale_of
from onnxtrain.graph.torch_export.traced import (
    JOINED,
    SOFTPLUS,
    call_of,
    calls,
    is_normalized,
    joins,
    module_of,
    moves,
    one_place,
    read_by_call,
    repeats,
    sources,
    stem,
    tensors,
)
from onnxtrain.transforms.weights.parameters import Decision
from onnxtrain.transforms.weights.resized import is_enlarged

_NEGATED = "neg"
_SHIFTED = frozenset({"add", _NEGATED, "sub"})
"""Calls whose results have the gradients of what they are given, if the rest is constant."""
_LEARNED = frozenset({
    *("addmm", "baddbmm", "bmm", "conv1d", "conv2d", "dot", "einsum", "gelu", "group_norm"),
    *("layer_norm", "linalg_vector_norm", "linear", "matmul", "mm", "mv", "relu", "rms_norm"),
    *("scaled_dot_product_attention", "sigmoid", "silu", "softmax", SOFTPLUS, "tanh", "vdot"),
})  # fmt: skip
"""Calls that compute with what is learned, not with places or constants."""
_ARITHMETIC = frozenset({
    *("abs", "amax", "amin", "ceil", "clamp", "clamp_max", "clamp_min", "cos", "div", "erf"),
    *("exp", "exp2", "expm1", "floor", "log", "log1p", "log2", "maximum", "mean", "minimum"),
    *("mul", "pow", "prod", "reciprocal", "round", "rsqrt", "sign", "sin", "sqrt", "square"),
    *("std", "sum", "tril", "triu", "trunc", "var"),
})  # fmt: skip
"""Calls that compute with either."""
_FILLED = frozenset({"full", "full_like", "ones", "ones_like", "zeros", "zeros_like"})
"""Calls that make constants."""
_PLACES = _FILLED | {"arange", "embedding", "gather", "index", "index_select", "linspace"}
"""Calls that are given places, or make them."""
_PARTS = frozenset({"getitem", "narrow", "select", "slice"})
"""Calls whose results are a part of what they are given."""
_WAVES = frozenset({"cos", "sin"})
"""Calls that compute positions, which a module does not learn."""
_PADDED = frozenset({"constant_pad_nd", "pad"})
"""Calls that put numbers around others, which a module does not learn."""
_LOOKED_UP = "embedding"
"""How results are called that are rows of a table."""
_EXPANDED = "expand"
"""How results are called that have numbers again along an axis."""
_REPEATED = "upsample_nearest"
"""How calls begin that give tables another size by taking or repeating numbers."""
_RESIZED = (
    *("_adaptive_avg_pool", "_upsample_", "adaptive_avg_pool", "avg_pool", "max_pool"),
    *("upsample_bi", "upsample_linear", "upsample_tri"),
)
"""How calls begin that compute the numbers of tables of another size."""
_ADDED = re.compile(r"(_once|_rest(_\d+)?)+$")
"""What names of tensors end with that were made of others."""
_NUMBER = "scalar_tensor_default"
"""What the number of a sum or a difference is called."""
_INSIDE = "val"
"""What tensors are called that one call, such as that of a layer, made of its own parameters."""
_MOST = 8
"""How many of them a message names."""
_CURE = "\n  export with dynamo=True and optimize=False to train the parameters themselves"


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
    measured = _still_computed(model.graph)
    called = {call: name for call, _, name in tensors(model.graph)}
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
        scale = scale_of(model.graph, value)
        alike = scale is None and _keeps(value, told, len(names), again)
        kept = (alike or scale == 1) and not (
            _computes(value, told, measured)
            or _is_joined_with_itself(value, len(names))
            or _is_product(value, called)
            or _has_constants(value, told)
        )
        if names and not kept:
            unless = _unless(value, told)
            found.append(f"'{decision.name}' from {', '.join(map(repr, names))}{unless}")
    if found:
        warnings.warn(
            "torch's exporter computed tensors from parameters that the file does not have any "
            "more; they are trained in another way than the module's parameters, or not at all"
            f"{_listed(found)}{_CURE}",
            stacklevel=level,
        )
    _warn_of_merged(model.graph, decisions, level + 1)
    _warn_of_folded(model.graph, decisions, level + 1)
    if unclear := unclear_calls(model.graph):
        warnings.warn(
            "the torch module detaches what these are computed from, and the file does not tell "
            f"which of their inputs; all get gradients{_listed([repr(one) for one in unclear])}"
            "\n  export with dynamo=True and optimize=False to train them as the module does",
            stacklevel=level,
        )


def _warn_of_folded(graph: ir.Graph, decisions: Sequence[Decision], level: int) -> None:
    """Warn of layers that are trained without the normalization that the module has behind them."""
    trained = {decision.name for decision in decisions if decision.trained}
    found: dict[str, None] = {}
    for node in filter(is_normalized, graph):
        weights = [str(value.name) for value in node.inputs[1:] if value is not None]
        if into := next((name for name in weights if name in trained), None):
            found[f"'{module_of(node)}' into '{into}'"] = None
    if found:
        warnings.warn(
            "torch's exporter folded batch normalizations into the layers before them; these are "
            "trained without normalization, which is another training than the module's"
            f"{_listed(list(found))}\n  export with dynamo=True and optimize=False to keep them",
            stacklevel=level,
        )


def _warn_of_merged(graph: ir.Graph, decisions: Sequence[Decision], level: int) -> None:
    """Warn of parameters that are trained as one, though the module may have several."""
    trained = [decision.name for decision in decisions if decision.trained]
    held = set(trained).union(*(sources(graph.initializers[name]) for name in trained))
    found = [f"'{a}' with '{b}'" for a, b in merged_names(graph).items() if b in held]
    if found:
        warnings.warn(
            "torch's exporter made one of parameters that were equal, and the file does not tell "
            "where each of them was read; unless the module never reads them, they are trained as "
            f"one{_listed(found)}{_CURE}",
            stacklevel=level,
        )


def _listed(lines: Sequence[str]) -> str:
    """The first lines of a list, and how many more there are."""
    more = f"\n  and {len(lines) - _MOST} more" if len(lines) > _MOST else ""
    return "".join(f"\n  {line}" for line in lines[:_MOST]) + more


def _still_computed(graph: ir.Graph) -> set[str]:
    """Names of what depends on inputs: of that, an exporter only takes the sizes."""
    found = {value for value in graph.inputs if value.name not in graph.initializers}
    for node in graph:
        if not found.isdisjoint(reads(node)):
            found.update(node.outputs)
    return {str(value.name) for value in found}


def _computes(value: ir.Value, told: Mapping[str, str], measured: Collection[str]) -> bool:
    """Whether the exporter computed more than a last call on the way from parameters to a tensor.

    Numbers may have been computed for places in a table instead, or from buffers.
    """
    on_the_way = calls(value, {*told, *measured})
    if _is_one_row(value, told) or _is_of_itself(value, told) or _is_one_number(value, told):
        return True
    if not _LEARNED.isdisjoint(on_the_way) or _has_rows_again(value, on_the_way):
        return True
    if any(call.startswith(_RESIZED) for call in on_the_way):
        return True
    if not _PADDED.isdisjoint(on_the_way) and _has_border(value):
        return True
    if any(call.startswith(_REPEATED) for call in on_the_way):
        return _is_enlarged(value)
    others = _has_others(value, told)
    return not others and _PLACES.isdisjoint(on_the_way) and not _ARITHMETIC.isdisjoint(on_the_way)


def _has_others(value: ir.Value, told: Mapping[str, str]) -> bool:
    """Whether a tensor was computed from tensors of the module that are no parameters."""
    return any(told.get(name, "PARAMETER") != "PARAMETER" for name in sources(value))


def _is_of_itself(value: ir.Value, told: Mapping[str, str]) -> bool:
    """Whether a tensor is the sum or difference of a parameter and the same, perhaps transposed.

    Or of two parts of it.
    """
    if _last_call(str(value.name)) not in _SHIFTED - {_NEGATED} or _has_others(value, told):
        return False
    on_the_way = calls(value, told)
    parts = [name for name in sources(value) if name not in told and stem(name) in _PARTS]
    return (len(parts) > 1 and _NUMBER not in on_the_way) or all(map(moves, on_the_way))


def _is_product(value: ir.Value, called: Mapping[str, str]) -> bool:
    """Whether a layer multiplied its parameter with numbers that are constant, too.

    What the layer goes on with tells its call, which was given both.
    """
    made_of = set(sources(value))
    for node, _ in value.uses():
        given = {called.get(name, name) for name in read_by_call(node)}
        if stem(call_of(node) or "") in _LEARNED and len(given & made_of) > 1:
            return True
    return False


def _has_constants(value: ir.Value, told: Mapping[str, str]) -> bool:
    """Whether a tensor was joined of parameters and of what the module does not train."""
    on_the_way = calls(value, told)
    call = _last_call(str(value.name))
    if call in JOINED and not _WAVES.isdisjoint(on_the_way):
        return True
    joined = not JOINED.isdisjoint({call, *on_the_way})
    others = _has_others(value, told) or not _FILLED.isdisjoint(on_the_way)
    return joined and others and (_PLACES - _FILLED).isdisjoint(on_the_way)


def _has_rows_again(value: ir.Value, on_the_way: Collection[str]) -> bool:
    """Whether a sum has rows of a table, most of them more than once, as its numbers tell.

    Or a vector some numbers of a parameter, of which it was taken.
    """
    tensor, call = value.const_value, stem(str(value.name).rpartition(".")[2])
    if tensor is None or is_uniform(tensor) or not any(map(repeats, (call, *on_the_way))):
        return False
    if moves(call) and len(tensor.shape) == 1:
        numbers, times = np.unique(tensor.numpy(), return_counts=True)
        return bool(numbers[times > 1].any())
    return call in _SHIFTED and 2 * np.unique(tensor.numpy()).size <= tensor.size


def _is_joined_with_itself(value: ir.Value, count: int) -> bool:
    """Whether a tensor has all numbers of one parameter again, perhaps with another sign."""
    tensor = value.const_value
    if tensor is None or count != 1 or _last_call(str(value.name)) not in JOINED:
        return False
    return 2 * np.unique(np.abs(tensor.numpy())).size <= tensor.size


def _has_border(value: ir.Value) -> bool:
    """Whether a tensor begins or ends with one number along an axis."""
    numbers = None if value.const_value is None else value.const_value.numpy()
    if numbers is None or not numbers.size:
        return False
    long = [axis for axis, size in enumerate(numbers.shape) if size > 1]
    edges = [numbers.take(place, axis) for axis in long for place in (0, -1)]
    return any(bool((edge == edge.flat[0]).all()) for edge in edges if edge.size > 1 or not edge)


def _unless(value: ir.Value, told: Collection[str]) -> str:
    """What would make a tensor the parameter itself, or one that is trained as that is."""
    if value.name in sources(value) and SOFTPLUS in calls(value, told):
        return " (unless beta of its softplus is 1)"
    return " (unless its size stayed)" if _may_have_its_size(value, told) else ""


def _may_have_its_size(value: ir.Value, told: Collection[str]) -> bool:
    """Whether a table was resized, and may have the size and the numbers that it had before."""
    resized = any(call.startswith(_RESIZED) for call in calls(value, told))
    return resized and not _is_enlarged(value)


def _is_enlarged(value: ir.Value) -> bool:
    return value.const_value is not None and is_enlarged(value.const_value.numpy())


def _is_one_row(value: ir.Value, told: Collection[str]) -> bool:
    """Whether rows of equal numbers that were looked up in a table may be the same one of it."""
    tensor = value.const_value
    if tensor is None or not str(value.name).startswith(_LOOKED_UP) or not is_uniform(tensor):
        return False
    sizes = tensor.shape.numpy()
    return tensor.size > sizes[-1] and one_place(value, told) is not False


def _is_one_number(value: ir.Value, told: Collection[str]) -> bool:
    """Whether equal numbers were expanded for something else than samples, and may be one."""
    tensor, call = value.const_value, stem(str(value.name).rpartition(".")[2])
    if tensor is None or tensor.size < 2 or not is_uniform(tensor):
        return False
    return call == _EXPANDED or (moves(call) and _EXPANDED in calls(value, told))


def _last_call(name: str) -> str:
    """The call of which a tensor, or what it was made of, is called the result."""
    return stem(_ADDED.sub("", name.rpartition(".")[2]))


def _keeps(value: ir.Value, told: Collection[str], count: int, again: bool) -> bool:
    """Whether a computed tensor has the gradients of so many parameters, as far as names tell.

    A parameter that is in the file again, in another form, has the gradients of both.
    """
    call = _last_call(str(value.name))
    if call in JOINED:
        return not again
    if count > 1:
        on_the_way = calls(value, told)
        parts = not JOINED.isdisjoint(on_the_way) and all(map(joins, {call, *on_the_way}))
        return call == _INSIDE or (parts and not again)
    return moves(call) or call == _INSIDE or (call in _SHIFTED and not again)
