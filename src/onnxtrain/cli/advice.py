"""Advice about a model: which loss fits, and how to get past a missing gradient."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.types import FLOATS, DataType

DISCRETE = {
    "ArgMax": "the choice of a class has no gradient",
    "ArgMin": "the choice of a class has no gradient",
    "TopK": "which values are chosen has no gradient",
    "NonMaxSuppression": "the choice of boxes has no gradient",
    "NonZero": "places have no gradient",
    "Equal": "a comparison has no gradient",
    "Greater": "a comparison has no gradient",
    "Less": "a comparison has no gradient",
}
"""Why operators without a rule have none, where no rule could help."""


def suggested_loss(model: ir.Model) -> str:
    """The loss that the first output with numbers of a prepared model suggests, and why."""
    output = next((v for v in model.graph.outputs if v.dtype in FLOATS), model.graph.outputs[0])
    if output.dtype not in FLOATS:
        return f"none: output '{output.name}' is not floating point; name another with --output"
    node = _maker(output)
    last = "" if node is None else node.op_type
    from onnxtrain.graph.bindings import dimensions

    dims = dimensions(output.shape) or ()
    whole = any(v.dtype == DataType.INT64 for v in model.graph.inputs)
    if last == "Softmax":
        return (
            "cross_entropy, on the scores before the Softmax: export the model without it, or "
            "name an output before it with --output"
        )
    if node is not None and _gives_probabilities(node):
        return f"likelihood, as '{output.name}' has probabilities"
    if last == "Sigmoid":
        return "mse, or bce on the scores before the Sigmoid (export the model without it)"
    if len(dims) == 3 and whole:
        return "next_token (a language model), or token_cross_entropy with a label a token"
    if output.shape is None:
        return "cross_entropy for classes, mse for numbers (the output has no known shape)"
    if len(dims) >= 2 and dims[1] != 1 and dims != dimensions(model.graph.inputs[0].shape):
        count = dims[1] if dims[1] is not None else "as many as the second axis has"
        return f"cross_entropy for labels of {count} classes, mse for numbers"
    return "mse for numbers, bce for yes or no"


def _maker(value: ir.Value) -> ir.Node | None:
    """What computed a value, behind operators that only move numbers; None if nothing did."""
    from onnxtrain.transforms.weights.places import is_mover

    producer = value.producer()
    while producer is not None and is_mover(producer):
        given = producer.inputs[0]
        producer = None if given is None else given.producer()
    return producer


def _gives_probabilities(node: ir.Node) -> bool:
    from onnxtrain.transforms.probabilities import source_of_probabilities

    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return source_of_probabilities(node.domain, node.op_type, attributes) is not None


def cures(model: ir.Model, trained: list[str]) -> list[str]:
    """For each node in the way of gradients that has no rule: what can be done about it.

    Operators that only onnxruntime can run are left out: the file must be another one.
    """
    from onnxtrain.gradients.rules import find_rule
    from onnxtrain.graph.bindings import opset_of
    from onnxtrain.unrunnable import why_unrunnable

    wanted = {model.graph.initializers[name] for name in trained}
    before: dict[ir.Value, set[ir.Value]] = {value: {value} for value in wanted}
    lines = []
    for node in model.graph:
        behind = set().union(*(before.get(v, set()) for v in node.inputs if v is not None))
        if not behind:
            continue
        version = opset_of(node, model.graph.opset_imports)
        unknown = find_rule(node.domain, node.op_type, version) is None
        if unknown and why_unrunnable(node.domain, node.op_type) is None:
            names = sorted(str(v.name) for v in behind)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            lines.append(
                f"  {node.op_type} '{node.name}': {_reason(node)}; freeze what is before it "
                f"({', '.join(names[:3])}{more}) with --freeze, put the loss on an output before "
                f"it with --output, or write a rule with @gradient({_called(node)})"
            )
        for value in node.outputs:
            before[value] = behind
    return lines


def _reason(node: ir.Node) -> str:
    """Why a node has no gradient."""
    from onnxtrain.types import MS, ONNX, OWN

    if node.domain not in (ONNX, MS, OWN):
        return (
            f"an operator of '{node.domain}', which nobody here knows: export the model with "
            "operators of ONNX in its place, or write its kernel and its rule"
        )
    return DISCRETE.get(node.op_type, "it has no gradient rule")


def _called(node: ir.Node) -> str:
    """The operator of a node, as rules name it."""
    from onnxtrain.types import ONNX

    domain = "" if node.domain == ONNX else f', domain="{node.domain}"'
    return f'"{node.op_type}"{domain}'
