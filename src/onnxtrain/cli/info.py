"""``onnxtrain info``: what a model consists of, and what of it can be trained."""

from __future__ import annotations

import collections
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxtrain.transforms.parameters import Decision
    from onnxtrain.types import Provider


def info(
    model: Annotated[pathlib.Path, typer.Argument(metavar="MODEL", help="The ONNX model.")],
) -> None:
    """Show what a model has and what can be trained.

    Prints inputs, outputs, parameters and operators, whether each operator can be run and
    differentiated, and which tensors are trained and why.
    """
    from onnxtrain.cli.console import table
    from onnxtrain.graph.load import load_model
    from onnxtrain.graph.prepare import prepare
    from onnxtrain.transforms.write_back import weight_names

    loaded = load_model(model)
    known = weight_names(loaded)
    opsets = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in loaded.graph.opset_imports.items())
    typer.echo(f"{model}: IR version {loaded.ir_version}, opset {opsets}")
    working = prepare(loaded)
    graph = working.graph
    inputs = [v for v in graph.inputs if v.name not in graph.initializers]
    table("inputs", ("name", "type", "shape"), map(_value, inputs))
    table("outputs", ("name", "type", "shape"), map(_value, graph.outputs))
    _parameters(working, known)
    _operators(working)


def _value(value: ir.Value) -> tuple[str, str, str]:
    from onnxtrain.types import type_string

    return str(value.name), type_string(value.type), dims(value.shape)


def dims(shape: Any) -> str:
    """A shape as text: ``[N, 3, 8, 8]``; an unknown dimension is ``?``."""
    if shape is None:
        return "unknown"
    shown = [str(d) if isinstance(d, int) else str(d.value or "?") for d in shape]
    return f"[{', '.join(shown)}]"


def _decisions(model: ir.Model, known: set[str]) -> list[Decision]:
    from onnxtrain.errors import ParameterError
    from onnxtrain.transforms.parameters import decide

    try:
        return decide(model, known=known)
    except ParameterError:
        return []


def _parameters(model: ir.Model, known: set[str]) -> None:
    from onnxtrain.cli.console import grouped, table
    from onnxtrain.types import dtype_name

    decisions = {d.name: d for d in _decisions(model, known)}
    rows = []
    for name, value in model.graph.initializers.items():
        if value.const_value is None:
            continue
        tensor, decision = value.const_value, decisions.get(name)
        rows.append(
            (
                name,
                dtype_name(tensor.dtype),
                dims(tensor.shape),
                grouped(tensor.size),
                "yes" if decision and decision.trained else "-",
                decision.reason if decision else _why_not(value),
            )
        )
    columns = ("name", "type", "shape", "elements", "trained", "why")
    table("parameters and constants", columns, rows, right=("elements",))
    trained = [d for d in decisions.values() if d.trained]
    elements = sum(d.elements for d in trained)
    typer.echo(f"trainable: {len(trained)} tensors, {grouped(elements)} elements")


def _why_not(value: ir.Value) -> str:
    from onnxtrain.types import FLOATS

    assert value.const_value is not None
    if value.const_value.dtype not in FLOATS:
        return "not floating point"
    return "no floating point tensor of the model is a weight"


def _operators(model: ir.Model) -> None:
    from onnxtrain.cli.console import table
    from onnxtrain.types import CPU, CUDA, op_name

    nodes = collections.defaultdict(list)
    for node in model.graph.all_nodes():
        nodes[node.domain, node.op_type].append(node)
    rows = []
    for (domain, op), group in sorted(nodes.items()):
        kernels = [_share(_with_kernel(group, model, p), group) for p in (CPU, CUDA)]
        rows.append((op_name(domain, op), str(len(group)), *kernels, _gradient(group, model)))
    columns = ("operator", "nodes", "CPU kernel", "CUDA kernel", "gradient")
    table("operators", columns, rows, right=("nodes",))


def _with_kernel(nodes: list[ir.Node], model: ir.Model, provider: Provider) -> int:
    """How many of the nodes have a kernel for their types."""
    from onnxtrain.graph.bindings import bound_types, opset_of
    from onnxtrain.kernels.library import default_registry

    registry, count = default_registry(), 0
    for node in nodes:
        version = opset_of(node, model.graph.opset_imports)
        types = bound_types(node, version)
        found = registry.find(node.domain, node.op_type, version, types, provider)
        count += found is not None
    return count


def _share(count: int, nodes: list[ir.Node]) -> str:
    if count == len(nodes):
        return "yes"
    return f"{count} of {len(nodes)}" if count else "no"


def _gradient(nodes: list[ir.Node], model: ir.Model) -> str:
    from onnxtrain.gradients.rules import find_rule
    from onnxtrain.graph.bindings import opset_of

    node = nodes[0]
    rule = find_rule(node.domain, node.op_type, opset_of(node, model.graph.opset_imports))
    if rule is None:
        return "no"
    return "zero" if rule.fn is None else "rule"
