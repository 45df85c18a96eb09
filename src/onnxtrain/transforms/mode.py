"""Training and evaluation form of a model: BatchNormalization and Dropout."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import unique_name
from onnxtrain.types import MS


@dataclasses.dataclass(frozen=True)
class TrainingForm(ir.passes.InPlacePass):
    """Put a model into training form.

    Every BatchNormalization becomes BatchNormInternal, which normalises with the statistics of the
    batch, keeps them for its gradient and moves the running ones.

    Attributes:
        batch_norm: False leaves BatchNormalization with its running statistics ("frozen").
        dropout: True lets Dropout nodes that were saved in inference form drop values again.
    """

    batch_norm: bool = True
    dropout: bool = False

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the nodes in place."""
        modified = False
        for node in list(model.graph):
            if node.domain == "" and node.op_type == "BatchNormalization" and self.batch_norm:
                _train_batch_norm(model.graph, node)
                modified = True
            elif node.domain == "" and node.op_type == "Dropout" and self.dropout:
                modified |= _train_dropout(model.graph, node)
        return ir.passes.PassResult(model, modified)


def _train_batch_norm(graph: ir.Graph, node: ir.Node) -> None:
    """BatchNormalization(1 or 3 outputs) becomes BatchNormInternal(5 outputs)."""
    kept = {k: a for k, a in node.attributes.items() if k in ("epsilon", "momentum")}
    new = ir.Node(
        MS,
        "BatchNormInternal",
        node.inputs,
        {**kept, "training_mode": ir.AttrInt64("training_mode", 1)},
        num_outputs=5,
        name=f"{node.name}_BatchNormInternal",
    )
    statistics = node.inputs[3]
    names = ("", "running_mean", "running_var", "saved_mean", "saved_inv_std")
    graph.insert_before(node, new)
    for index, value in enumerate(new.outputs):
        old = node.outputs[index] if index < min(3, len(node.outputs)) else None
        if old is not None and old.name:
            name = old.name
            old.replace_all_uses_with(value, replace_graph_outputs=True)
            old.name = f"{name}_replaced"
            value.name, value.type, value.shape = name, old.type, old.shape
        else:
            value.name = unique_name(graph, f"{node.name}_{names[index]}")
            if statistics is not None:
                value.type, value.shape = statistics.type, statistics.shape
    graph.remove(node, safe=True)
    graph.opset_imports.setdefault(MS, 1)


def _train_dropout(graph: ir.Graph, node: ir.Node) -> bool:
    """Give a Dropout of opset 12 or later the training_mode input True."""
    if graph.opset_imports.get("", 1) < 12:
        return False
    op = Ops(graph, f"{node.name}/")
    mode = op.const(np.asarray(True))
    node.resize_inputs(3)
    node.replace_input_with(2, mode)
    return True


@dataclasses.dataclass(frozen=True)
class EvaluationForm(ir.passes.InPlacePass):
    """Put a model into evaluation form: no Dropout, running statistics in BatchNormalization."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the nodes in place."""
        modified = False
        for node in list(model.graph):
            if node.domain != "":
                continue
            if node.op_type == "Dropout" and len(node.inputs) > 2:
                node.resize_inputs(2)
                modified = True
            elif node.op_type == "BatchNormalization" and "training_mode" in node.attributes:
                _evaluate_batch_norm(node)
                modified = True
        return ir.passes.PassResult(model, modified)


def _evaluate_batch_norm(node: ir.Node) -> None:
    """Drop training_mode and the running outputs, which evaluation form does not have."""
    del node.attributes["training_mode"]
    running = list(zip(node.outputs[1:], node.inputs[3:], strict=False))
    for output, given in running:
        if given is not None:
            output.replace_all_uses_with(given, replace_graph_outputs=False)
    if not any(value.is_graph_output() for value, _ in running):
        node.resize_outputs(1)
