"""Operators of torch that its exporter cannot write: nodes that call torch.

Such as medians, singular values, and those that a library has registered itself.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from onnxtrain.errors import GraphError
from onnxtrain.ortmodule.layout import Layout
from onnxtrain.ortmodule.traced import node_of

_MISSING = re.compile(r"No ONNX function found for <OpOverload\(op='(\w+)\.(\w+)', overload='(\w+)")
NODES = "onnx_symbolic"
"""Torch's operators that are nodes of ONNX in a program."""


class Operator(torch.autograd.Function):
    """An operator of torch with arguments in a layout, whose gradients are torch's own."""

    @staticmethod
    def apply(target: Any, layout: Layout, *tensors: torch.Tensor) -> Any:
        """Call it."""
        args, kwargs = layout.filled(tensors)
        return target(*args, **kwargs)


def left_out(error: BaseException | None) -> Any:
    """The operator for which the exporter has failed; None if it was something else."""
    while error is not None:
        if found := _MISSING.search(str(error)):
            space, name, overload = found.groups()
            return getattr(getattr(getattr(torch.ops, space), name), overload)
        error = error.__cause__
    return None


def called_by_nodes(program: ExportedProgram, target: Any) -> ExportedProgram:
    """The same program, in which nodes call an operator.

    Raises:
        GraphError: if the operator is only a part of others.
        TypeError: if it has a size among its arguments.
    """
    table: dict[Any, Any] = {
        each: functools.partial(_call, each) for each in _like(program, target)
    }
    if not table:  # what it is part of is taken apart
        table = torch.export.default_decompositions()
        table[target] = functools.partial(_call, target)
    changed: ExportedProgram = program.run_decompositions(table)
    if _nodes(changed) == _nodes(program):
        raise GraphError(f"torch's exporter has no translation of {target} into ONNX")
    return changed


def _like(program: ExportedProgram, target: Any) -> list[Any]:
    """An operator where a program has it, or those with the same name where it has another form."""
    have = _targets(program)
    return [target] if target in have else [each for each in have if each._opname == target._opname]


def _nodes(program: ExportedProgram) -> int:
    """How many nodes of ONNX there are in a program."""
    return sum(getattr(node.target, "namespace", "") == NODES for node in program.graph.nodes)


def _targets(program: ExportedProgram) -> list[Any]:
    found = dict.fromkeys(node.target for node in program.graph.nodes)
    return [target for target in found if isinstance(target, torch._ops.OpOverload)]


def _call(target: Any, *args: Any, **kwargs: Any) -> Any:
    layout, tensors = Layout.of((args, kwargs))
    with disable_proxy_modes_tracing():
        results = target(*args, **kwargs)
    several = isinstance(results, (tuple, list))
    found = node_of(Operator, (target, layout, *tensors), results if several else [results])
    return tuple(found) if several else found[0]
