"""``onnxtrain info``: what a model consists of, and what of it can be trained."""

from __future__ import annotations

import collections
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxtrain.transforms.weights.parameters import Decision
    from onnxtrain.types import Provider


def info(
    model: Annotated[pathlib.Path, typer.Argument(metavar="MODEL", help="The ONNX model.")],
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Tell the memory of a training step on N samples.")
    ] = None,
) -> None:
    """Show what a model has and what can be trained.

    Prints inputs, outputs, parameters and operators, whether each operator can be run and
    differentiated, and which tensors are trained and why. Ends with everything that stands in the
    way of training, all at once.
    """
    from onnxtrain.cli.console import table
    from onnxtrain.graph.loading.load import load_source
    from onnxtrain.training.build import working_copy
    from onnxtrain.transforms.write_back import weight_names

    loaded = load_source(model).model
    known = weight_names(loaded)
    opsets = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in loaded.graph.opset_imports.items())
    typer.echo(f"{model}: IR version {loaded.ir_version}, opset {opsets}")
    working = working_copy(loaded)
    graph = working.graph
    inputs = [v for v in graph.inputs if v.name not in graph.initializers]
    table("inputs", ("name", "type", "shape"), map(_value, inputs))
    table("outputs", ("name", "type", "shape"), map(_value, graph.outputs))
    trained = _parameters(working, known)
    _operators(working)
    if _verdict(working, trained) and batch_size is not None:
        _memory(model, batch_size)


def _memory(model: pathlib.Path, batch_size: int) -> None:
    """Print what a training step will need."""
    from onnxtrain.cli.footprint import footprint

    told = footprint(model, batch_size)
    parts = {
        "parameters": told.parameters,
        "gradients": told.gradients,
        "adamw": told.moments,
        "activations": told.activations,
    }
    shown = ", ".join(f"{name} {count / 2**20:,.1f} MiB" for name, count in parts.items())
    more = f" (without {told.unknown} tensors of unknown size)" if told.unknown else ""
    typer.echo(
        f"memory of a step on {batch_size} samples: {told.total / 2**20:,.1f} MiB{more}; {shown}"
    )
    less = [
        f"{count / 2**20:,.1f} MiB with {option}"
        for option, count in told.less.items()
        if count < told.activations
    ]
    if less:
        typer.echo(f"activations could be {', '.join(less)}")


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
    from onnxtrain.transforms.weights.parameters import decide

    try:
        return decide(model, known=known)
    except ParameterError:
        return []


def _parameters(model: ir.Model, known: set[str]) -> list[str]:
    """Print the tensors of a model; gives the names of those that are trained."""
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
    return [d.name for d in trained]


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


def _verdict(model: ir.Model, trained: list[str]) -> bool:
    """Print whether the model can be trained, or all operators that stand in the way; tell it."""
    from onnxtrain.cli.advice import cures, suggested_loss
    from onnxtrain.transforms.weights.untrainable import other_homes
    from onnxtrain.types import op_name
    from onnxtrain.unrunnable import why_unknown, why_unrunnable

    found = sorted({(n.domain, n.op_type) for n in model.graph.all_nodes() if _stuck(n, model)})
    stuck = [op_name(*one) for one in found]
    if stuck:
        told = (why_unrunnable(*one) or why_unknown(*one) for one in found)
        reasons = dict.fromkeys(filter(None, told))
        typer.echo(f"cannot be run: {', '.join(stuck)} (no kernel)")
        typer.echo("".join(f"  {reason}\n" for reason in reasons), nl=False)
    nothing = "\n  ".join(["there is no weight to train", *other_homes(model.graph)])
    problem = _missing_gradients(model, trained) if trained else nothing
    if problem:
        typer.echo("\n".join([f"cannot be trained: {problem}", *cures(model, trained)]))
    elif not stuck:
        typer.echo(f"suggested loss: {suggested_loss(model)}\ncan be trained")
    return not problem and not stuck


def _stuck(node: ir.Node, model: ir.Model) -> bool:
    """Whether there is neither a kernel for a node nor a body that stands for it."""
    from onnxtrain.graph import schemas
    from onnxtrain.graph.bindings import opset_of
    from onnxtrain.types import CPU

    if _with_kernel([node], model, CPU):
        return False
    version = opset_of(node, model.graph.opset_imports)
    schema: Any = schemas.get(node.domain, node.op_type, version)
    return schema is None or not (schema.has_function or schema.has_context_dependent_function)


def _missing_gradients(model: ir.Model, trained: list[str]) -> str | None:
    """What stands between the trained weights and the floating point outputs, None if nothing."""
    from onnxtrain.errors import OnnxTrainError
    from onnxtrain.gradients.api import gradient_graph
    from onnxtrain.gradients.engine import can_carry_gradient

    ys = [str(value.name) for value in model.graph.outputs if can_carry_gradient(value)]
    if not ys:
        return "there is no floating point output"
    try:
        gradient_graph(model, trained, ys, allow_unused=True)
    except OnnxTrainError as error:
        return str(error)
    return None


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
