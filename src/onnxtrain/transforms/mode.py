"""Training and evaluation form of a model: BatchNormalization and Dropout."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.builder import Ops
from onnxtrain.graph.edit import collected_names, is_used, take_over, unique_name
from onnxtrain.graph.walk import all_nodes
from onnxtrain.types import MS, ONNX

_TRAINING_INPUT_SINCE = 12
"""From this opset on Dropout has an input that says whether it drops."""


@dataclasses.dataclass(frozen=True)
class TrainingForm(ir.passes.InPlacePass):
    """Put a model into training form.

    Every BatchNormalization becomes BatchNormInternal, which normalises with the statistics of the
    batch, keeps them for its gradient and moves the running ones. Nodes in the bodies of If, Loop
    and Scan stay as they are.

    Attributes:
        batch_norm: False makes BatchNormalization use its running statistics ("frozen").
        dropout: True lets Dropout nodes that were saved in inference form drop values again.
        as_marked: True leaves a BatchNormalization as it is that is not marked as one that trains.
    """

    batch_norm: bool = True
    dropout: bool = False
    as_marked: bool = False

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the nodes in place."""
        modified = False
        with collected_names(model.graph):
            for node in list(model.graph):
                if _is(node, "BatchNormalization"):
                    modified |= self._batch_norm(model.graph, node)
                elif _is(node, "Dropout") and self.dropout:
                    modified |= _train_dropout(model.graph, node)
        return ir.passes.PassResult(model, modified)

    def _batch_norm(self, graph: ir.Graph, node: ir.Node) -> bool:
        if self.as_marked and not node.attributes.get_int("training_mode", 0):
            return False
        if not self.batch_norm:
            return _evaluate_batch_norm(node)
        _train_batch_norm(graph, node)
        return True


def _is(node: ir.Node, op_type: str) -> bool:
    return node.domain == ONNX and node.op_type == op_type


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
            take_over(old, value)
        else:
            value.name = unique_name(graph, f"{node.name}_{names[index]}")
            if statistics is not None:
                value.type, value.shape = statistics.type, statistics.shape
    graph.remove(node, safe=True)
    graph.opset_imports.setdefault(MS, 1)


def moved_statistics(model: ir.Model) -> list[str]:
    """Names of the running statistics that a model in training form changes."""
    nodes = [n for n in model.graph if n.domain == MS and n.op_type == "BatchNormInternal"]
    names = [str(value.name) for node in nodes for value in node.inputs[3:5] if value is not None]
    return list(dict.fromkeys(names))


def _train_dropout(graph: ir.Graph, node: ir.Node) -> bool:
    """Let a Dropout drop: by its third input, or by BitmaskDropout where opsets have no such."""
    op = Ops(graph, f"{node.name}/")
    if op.opset >= _TRAINING_INPUT_SINCE:
        node.resize_inputs(3)
        node.replace_input_with(2, op.const(np.asarray(True)))
        return True
    if any(is_used(mask) for mask in node.outputs[1:]):
        return False
    rate = node.attributes.get_float("ratio", 0.5)
    new = ir.Node(
        MS,
        "BitmaskDropout",
        [node.inputs[0], op.const(np.float32(rate)), op.const(np.asarray(True))],
        num_outputs=1,
        name=f"{node.name}_BitmaskDropout",
    )
    graph.insert_before(node, new)
    take_over(node.outputs[0], new.outputs[0])
    graph.remove(node, safe=True)
    graph.opset_imports.setdefault(MS, 1)
    return True


@dataclasses.dataclass(frozen=True)
class EvaluationForm(ir.passes.InPlacePass):
    """Put a model into evaluation form: no Dropout, running statistics in BatchNormalization.

    Attributes:
        saved: True for a model that is handed back: a Dropout whose flag is no constant stays as it
            is, since who runs the model chooses, and flags that nothing reads any more are removed.
    """

    saved: bool = False

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite the nodes in place, those in functions and in the bodies of other nodes too."""
        modified = False
        graphs = (model.graph, *(function.graph for function in model.functions.values()))
        for node in [node for graph in graphs for node in all_nodes(graph)]:
            if _is(node, "Dropout") and len(node.inputs) > 2:
                modified |= self._dropout(node)
            elif _is(node, "BatchNormalization"):
                modified |= _evaluate_batch_norm(node)
        return ir.passes.PassResult(model, modified)

    def _dropout(self, node: ir.Node) -> bool:
        flag = node.inputs[2]
        tensor = None if flag is None else ir.convenience.get_const_tensor(flag)
        if self.saved and (tensor is None or not tensor.numpy().all()):
            return False
        node.resize_inputs(2)
        if self.saved and flag is not None and not is_used(flag):
            _forget(flag)
        return True


def _forget(flag: ir.Value) -> None:
    """Remove a constant that nothing reads; an input of the model stays."""
    maker, graph = flag.producer(), flag.graph
    if maker is not None and maker.graph is not None:
        maker.graph.remove(maker, safe=True)
    elif graph is not None and not flag.is_graph_input():
        graph.initializers.pop(str(flag.name))


def _evaluate_batch_norm(node: ir.Node) -> bool:
    """Drop training_mode and the running statistics that only a training node puts out."""
    trains = node.attributes.get_int("training_mode", 0) or len(node.outputs) > 1
    if not trains:
        return False
    node.attributes.pop("training_mode", None)
    for output, given in zip(node.outputs[1:3], node.inputs[3:5], strict=False):
        if given is None:
            continue
        if output.is_graph_output():
            _return_input(node, output, given)
        output.replace_all_uses_with(given, replace_graph_outputs=False)
    if not any(is_used(value) for value in node.outputs[1:]):
        node.resize_outputs(1)
    return True


def _return_input(node: ir.Node, output: ir.Value, given: ir.Value) -> None:
    """Let an Identity of an input be the graph's output in place of a node's output."""
    graph = node.graph
    assert graph is not None
    copied = ir.node("Identity", [given], name=f"{node.name}_{output.name}_Identity")
    graph.insert_after(node, copied)
    take_over(output, copied.outputs[0])
