"""What was added to the protobuf of a model, added to the model itself.

Reading a whole protobuf and inferring its types again takes long for a large model.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir


def grafted(model: ir.Model, before: onnx.ModelProto, after: onnx.ModelProto) -> ir.Model:
    """The model of an edited protobuf.

    Args:
        model: The model; it is changed if the protobuf was only added to.
        before: Its protobuf.
        after: The protobuf after it was edited.
    """
    if not _is_longer(before, after):
        return ir.from_proto(after)
    known = _values(model.graph)
    addition = ir.from_proto(_addition(before, after, known)).graph
    addition.outputs.clear()
    for value in list(addition.inputs):
        addition.inputs.remove(value)
        if value.name in known:
            value.replace_all_uses_with(known[value.name])
        else:
            model.graph.inputs.append(value)
    for name, value in list(addition.initializers.items()):
        del addition.initializers[name]
        model.graph.register_initializer(value)
    for node in list(addition):
        addition.remove(node)
        model.graph.append(node)
    values = _values(model.graph)
    model.graph.outputs[:] = [values[output.name] for output in after.graph.output]
    model.graph.opset_imports.update({one.domain: one.version for one in after.opset_import})
    return model


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    """The values that a graph itself defines, by name."""
    values = [*graph.inputs, *graph.initializers.values()]
    values += [value for node in graph for value in node.outputs]
    return {value.name: value for value in values if value.name}


def _is_longer(before: onnx.ModelProto, after: onnx.ModelProto) -> bool:
    """Whether nodes, inputs and initializers are those of before with others behind them."""
    old, new = before.graph, after.graph
    if after.functions != before.functions or len(new.sparse_initializer):
        return False
    pairs = ((old.node, new.node), (old.input, new.input), (old.initializer, new.initializer))
    if any(list(one) != list(two[: len(one)]) for one, two in pairs):
        return False
    versions = {one.domain: one.version for one in after.opset_import}
    if any(versions.get(one.domain) != one.version for one in before.opset_import):
        return False
    return not any(
        attribute.HasField("g") for node in _new(before, after) for attribute in node.attribute
    )


def _new(before: onnx.ModelProto, after: onnx.ModelProto) -> list[onnx.NodeProto]:
    return list(after.graph.node[len(before.graph.node) :])


def _addition(
    before: onnx.ModelProto, after: onnx.ModelProto, known: dict[str, ir.Value]
) -> onnx.ModelProto:
    """The nodes that were added as a model, whose inputs are what they read of the others."""
    nodes, graph = _new(before, after), after.graph
    inputs = list(graph.input[len(before.graph.input) :])
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in node.input)
    read |= dict.fromkeys(output.name for output in graph.output)
    inputs += [
        onnx.ValueInfoProto(name=name) for name in read if name in known and name not in made
    ]
    part = onnx.helper.make_graph(
        nodes,
        "addition",
        inputs,
        list(graph.output),
        list(graph.initializer[len(before.graph.initializer) :]),
        value_info=[info for info in graph.value_info if info.name in made],
    )
    return onnx.helper.make_model(
        part, opset_imports=list(after.opset_import), ir_version=after.ir_version
    )
