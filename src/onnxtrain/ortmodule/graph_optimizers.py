"""What functions of ``register_graph_optimizer`` find nodes with, and put others in their place."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx import helper, numpy_helper

Edge = tuple[int, int, int]
"""The place of a node in a pattern, the place of an output, and that of the input that reads it."""
Pattern = Sequence[tuple[str, bool, Sequence[Edge]]]
"""Of each node the type, whether it produces what the first edge's node reads, and its edges."""
ANY = -1


class GraphMatcher:
    """Finds the nodes of a graph that are connected like those of a pattern.

    A pattern is a list of ``(op_type, is_producer, edges)``; an edge is ``(node, output, input)``,
    where the node is one that stands before in the list. A producer has the output which that node
    reads as the input; a consumer reads that node's output. The place in the node that is looked
    for may be -1: any. Of several nodes that fit, the first one is taken.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._producers: dict[str, onnx.NodeProto] = {}
        self._consumers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        self._types: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        self._reads: Counter[str] = Counter()
        for node in graph.node:
            self._types[node.op_type].append(node)
            self._producers.update(dict.fromkeys(node.output, node))
            self._reads.update(node.input)
            for name in dict.fromkeys(node.input):
                self._consumers[name].append(node)

    def get_consumer_count(self, arg: str) -> int:
        """How often a value is read."""
        return self._reads[arg]

    def get_constant_value(self, arg: str) -> Any:
        """What a Constant node or an initializer has, as a number or lists; None for others."""
        node = self._producers.get(arg)
        if node is not None:
            return _listed(_attribute(node, "value")) if node.op_type == "Constant" else None
        return next((_listed(t) for t in self._graph.initializer if t.name == arg), None)

    def get_type_and_shape(self, arg: str) -> tuple[int | None, list[Any] | None]:
        """The type of a value's elements and its sizes, some as names; None if it is not known."""
        for value in (*self._graph.input, *self._graph.value_info):
            kind = value.type.tensor_type
            if value.name == arg and kind.HasField("shape"):
                return kind.elem_type, [dim.dim_param or dim.dim_value for dim in kind.shape.dim]
        for tensor in self._graph.initializer:
            if tensor.name == arg:
                return tensor.data_type, list(tensor.dims)
        return None, None

    def match_pattern(self, pattern: Pattern) -> Iterator[list[onnx.NodeProto]]:
        """Nodes that are connected like a pattern, in its order, once for each first node."""
        for node in self._types[pattern[0][0]]:
            found = [node]
            for kind, is_producer, edges in pattern[1:]:
                fitting = self._fitting(found, kind, is_producer, edges)
                if fitting is None:
                    break
                found.append(fitting)
            if len(found) == len(pattern):
                yield found

    def _fitting(
        self, found: Sequence[onnx.NodeProto], kind: str, is_producer: bool, edges: Sequence[Edge]
    ) -> onnx.NodeProto | None:
        """The first node of a type that has these edges."""
        known, output, place = edges[0]
        if is_producer:
            read = _at(found[known].input, place)
            candidates = [self._producers[read]] if read in self._producers else []
        else:
            candidates = self._consumers.get(_at(found[known].output, output) or "", [])
        return next(
            (
                node
                for node in candidates
                if node.op_type == kind
                and all(_is_edge(node, found[at], is_producer, *ends) for at, *ends in edges)
            ),
            None,
        )


def _is_edge(
    node: onnx.NodeProto, known: onnx.NodeProto, is_producer: bool, output: int, place: int
) -> bool:
    producer, consumer = (node, known) if is_producer else (known, node)
    made = producer.output if output == ANY else [_at(producer.output, output)]
    read = consumer.input if place == ANY else [_at(consumer.input, place)]
    return any(name and name in read for name in made)


def _at(names: Sequence[str], place: int) -> str | None:
    return names[place] if 0 <= place < len(names) else None


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    found = (helper.get_attribute_value(a) for a in node.attribute if a.name == name)
    return next(found, None)


def _listed(tensor: onnx.TensorProto) -> Any:
    return numpy_helper.to_array(tensor).tolist()


def check_attribute_value(node: onnx.NodeProto, attr_name: str, expected_value: Any) -> bool:
    """Whether an attribute of a node has a value."""
    return bool(_attribute(node, attr_name) == expected_value)


def make_constant_node(name: str, dtype: int, dims: Sequence[int], vals: Any) -> onnx.NodeProto:
    """A Constant node that gives numbers of a type and shape under a name."""
    value = helper.make_tensor(name, dtype, dims, vals)
    return helper.make_node("Constant", [], [name], value=value)


def update_graph(
    graph: onnx.GraphProto,
    nodes_to_remove: Sequence[onnx.NodeProto],
    nodes_to_add: Sequence[onnx.NodeProto],
    new_value_infos: Sequence[onnx.ValueInfoProto] = (),
) -> None:
    """Take nodes out of a graph and put others in, in any order, with what is known of values."""
    rest = [node for node in graph.node if node not in nodes_to_remove]
    rest = [onnx.NodeProto.FromString(node.SerializeToString()) for node in (*rest, *nodes_to_add)]
    del graph.node[:]  # which ends the nodes that were in it
    graph.node.extend(rest)
    graph.value_info.extend(new_value_infos)
