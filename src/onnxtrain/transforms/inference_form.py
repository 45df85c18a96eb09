"""Nodes that a protobuf model has in training form, for inference: Dropout, BatchNormalization.

This is ``mode.EvaluationForm`` for files, of which nothing else may change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from onnx import helper, numpy_helper

from onnxtrain.graph.bodies import proto_subgraphs
from onnxtrain.types import ONNX

Holder = onnx.GraphProto | onnx.FunctionProto
_DOMAINS = (ONNX, "ai.onnx")


def for_inference(model: onnx.ModelProto) -> None:
    """Let Dropout drop nothing and BatchNormalization use its running statistics, in place.

    A Dropout whose flag is no constant stays as it is: who runs the model chooses.
    """
    for top in (model.graph, *model.functions):
        lost = set(_settle(top, {}))
        lost -= _read(top) if lost else lost
        for holder in (top, *(body for _, body in proto_subgraphs(top))) if lost else ():
            _remove(holder, lost)


def _settle(holder: Holder, outer: Mapping[str, bool]) -> list[str]:
    """Rewrite the nodes of a graph and of its bodies; gives values that they had and have not."""
    flags = {**outer, **_flags(holder)}
    taken: list[str] = []
    for node in list(holder.node):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH and not attribute.ref_attr_name:
                taken += _settle(attribute.g, flags)
        if node.domain not in _DOMAINS:
            continue
        if node.op_type == "Dropout" and flags.get("".join(node.input[2:3])):
            taken.append(node.input.pop())
            del node.input[len(list(filter(None, node.input))) :]
        elif node.op_type == "BatchNormalization":
            taken += _use_running(holder, node)
    return taken


def _flags(holder: Holder) -> dict[str, bool]:
    """Constants of a graph that are one truth value."""
    graph = isinstance(holder, onnx.GraphProto)
    tensors = {tensor.name: tensor for tensor in (holder.initializer if graph else ())}
    tensors |= {
        node.output[0]: node.attribute[0].t
        for node in holder.node
        if node.op_type == "Constant" and node.attribute[0].HasField("t")
    }
    found = {n: t for n, t in tensors.items() if t.data_type == onnx.TensorProto.BOOL}
    return {n: bool(numpy_helper.to_array(t).all()) for n, t in found.items()}


def _use_running(holder: Holder, node: onnx.NodeProto) -> list[str]:
    """Take training_mode away, and the statistics that only a training node puts out.

    Those that something reads are copies of the running ones then.
    """
    mode = next((a for a in node.attribute if a.name == "training_mode"), None)
    trains = len(node.output) > 1 if mode is None else mode.i and not mode.ref_attr_name
    read = _read(holder) if trains else set()
    if not trains or any(name in read for name in node.output[3:]):
        return []
    if mode is not None:
        node.attribute.remove(mode)
    for name, given in zip(node.output[1:3], node.input[3:5], strict=False):
        if name in read:
            label = f"{node.name}_{name}_Identity"
            copied = helper.make_node("Identity", [given], [name], name=label)
            holder.node.insert(list(holder.node).index(node) + 1, copied)
    gone = list(node.output[1:])
    del node.output[1:]
    return gone


def _read(holder: Holder) -> set[str]:
    """Names of values that nodes of a graph and of its bodies take, and of what they return."""
    graphs = [holder, *(body for _, body in proto_subgraphs(holder))]
    names = {name for graph in graphs for node in graph.node for name in node.input}
    return names.union(*(_returned(graph) for graph in graphs)) - {""}


def _returned(holder: Holder) -> Iterator[str]:
    for value in holder.output:
        yield value if isinstance(value, str) else value.name


def _remove(holder: Holder, names: set[str]) -> None:
    """Take away constants that nothing reads any more, and what is told of values that are gone.

    Inputs of the model stay.
    """
    if isinstance(holder, onnx.GraphProto):
        given = {value.name for value in holder.input}
        for tensor in [t for t in holder.initializer if t.name in names - given]:
            holder.initializer.remove(tensor)
    for told in [value for value in holder.value_info if value.name in names]:
        holder.value_info.remove(told)
    for node in [n for n in holder.node if n.op_type == "Constant" and n.output[0] in names]:
        holder.node.remove(node)
