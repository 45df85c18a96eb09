"""Models of torch's exporter with the parameters that the module has."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from onnxtrain.graph.constants import made_beside
from onnxtrain.graph.loading.load import load_model
from onnxtrain.graph.maps import written
from onnxtrain.graph.torch_export.folded import tie
from onnxtrain.graph.torch_export.restored import restore
from onnxtrain.graph.torch_export.shared_rows import share_rows
from onnxtrain.graph.torch_export.traced import held_names, other_names, sources
from onnxtrain.transforms.weights.computed import warn_of_computed
from onnxtrain.transforms.weights.parameters import STATISTICS, Decision
from onnxtrain.types import FLOATS

_MOST = 8
"""How many names a message has."""


def as_in_torch(
    proto: onnx.ModelProto,
    model: ir.Model,
    trainable: Sequence[str],
    frozen: Sequence[str],
    level: int,
) -> tuple[onnx.ModelProto, list[str], list[str]]:
    """The model with the parameters of the module, and the names of those to train and to freeze.

    What an exporter merged is apart, what it left out is back, and what it stored twice is one,
    unless a tensor is named that is no parameter then.

    Args:
        proto: The model.
        model: The same to work with; it is changed.
        trainable: Names of what is trained, in the module or in the file.
        frozen: Names of what is not.
        level: How many callers there are between this function and the user.
    """
    named = {*trainable, *frozen}
    known = named & set(model.graph.initializers)
    from_file = named <= held_names(model.graph)
    changed = any([tie(model), restore(model)])
    gone = sorted(known - set(model.graph.initializers))
    if gone:
        model, changed = _with_rows_once(proto, known)
        _warn_of_results(gone, level + 1)
    proto = written(model) if changed else proto
    beside = _beside(model.graph, named) if from_file else {}
    values, moved = model.graph.initializers, merged_statistics(model.graph)
    weights = {name: of for name, of in beside.items() if not _is_statistic(values[name])}
    more = {name: of for name, of in weights.items() if of in trainable}
    trained = _stored(model.graph, trainable)
    if more:
        _warn_of_more(more, level + 1)
    trained += [name for name in more if name not in trained]
    decisions = [
        Decision(str(value.name), value.name in trained, "", 0)
        for value in model.graph.initializers.values()
    ]
    warn_of_computed(model, decisions, False, level + 1)
    kept = [name for name, of in {**weights, **moved}.items() if name in beside and of in frozen]
    return proto, trained, [*frozen, *kept]


def _with_rows_once(proto: onnx.ModelProto, known: set[str]) -> tuple[ir.Model, bool]:
    """A model in which only what was stored twice is one, and whether anything was."""
    model = load_model(proto)
    if any([tie(model), share_rows(model)]) and known <= set(model.graph.initializers):
        return model, True
    return load_model(proto), False


def _beside(graph: ir.Graph, named: set[str]) -> dict[str, str]:
    """Tensors that the file had no name for, with those that they were merged with."""
    found = {}
    for value in graph.initializers.values():
        of = made_beside(value)
        if of is not None and of in graph.initializers and value.dtype in FLOATS and value.uses():
            own = {str(value.name), *sources(value), *other_names(value)}
            names = [of, *sources(graph.initializers[of])]
            if (name := next((one for one in names if one in named), None)) and not own & named:
                found[str(value.name)] = name
    return found


def merged_statistics(graph: ir.Graph) -> dict[str, str]:
    """Running statistics with those of the file that they were merged with.

    What the file has as one tensor with a weight is not among them.
    """
    found = {}
    for value in graph.initializers.values():
        of = made_beside(value)
        if of is None or of not in graph.initializers or not _is_statistic(value):
            continue
        first = graph.initializers[of]
        if not first.uses() or _is_statistic(first):
            found[str(value.name)] = of
    return found


def _is_statistic(value: ir.Value) -> bool:
    return any((node.op_type, index) in STATISTICS for node, index in value.uses())


def _stored(graph: ir.Graph, names: Sequence[str]) -> list[str]:
    """The tensors that parameters are in: their own, or what an exporter computed from them.

    A weight that several modules share is stored under the name that it has in one of them.
    """
    have = {value.name for value in (*graph.initializers.values(), *graph.inputs)}
    made: dict[str, list[str]] = {}
    for value in graph.initializers.values():
        own = [*sources(value), *other_names(value)] if value.dtype in FLOATS else []
        for name in own:
            made.setdefault(name, []).append(str(value.name))
    found = [[name] if name in have else made.get(name, [name]) for name in names]
    return list(dict.fromkeys(itertools.chain.from_iterable(found)))


def _warn_of_more(more: dict[str, str], level: int) -> None:
    lines = [f"\n  '{name}' like '{of}'" for name, of in more.items()]
    shown = "".join(lines[:_MOST])
    rest = f"\n  and {len(lines) - _MOST} more" if len(lines) > _MOST else ""
    warnings.warn(
        "torch's exporter merged parameters because they were equal, or left them out because they "
        f"were zero; they are apart again, and trained, too{shown}{rest}\n  name them in "
        "requires_grad as well, or in frozen_params to keep them as they are",
        stacklevel=level,
    )


def _warn_of_results(names: Sequence[str], level: int) -> None:
    shown = ", ".join(map(repr, names[:_MOST]))
    warnings.warn(
        f"torch's exporter computed {shown} from parameters of the module; since such tensors are "
        "named, the model stays as the file has it, which is trained in another way than the module"
        "\n  name the parameters of the module instead",
        stacklevel=level,
    )
