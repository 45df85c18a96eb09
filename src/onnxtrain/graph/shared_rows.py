"""Parameters that an exporter repeated for a batch of a fixed size.

A token before the patches of every image, or a table of positions, is one parameter that all
samples share. For a batch of a fixed size, torch's exporter stores what it becomes for each of
them. That is right for a model that only runs; training would give every sample its own.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtrain.graph.constants import constant, is_uniform
from onnxtrain.graph.edit import unique_name
from onnxtrain.graph.folded import read_numbers, shape_of, take_place
from onnxtrain.graph.traced import parameters, sources, tell_sources

_EXPANDED = "expand"
"""What the exporter calls the results of that operator."""


def share_rows(model: ir.Model) -> bool:
    """Make such a tensor of what it has once, in place; whether there was one."""
    graph = model.graph
    known, batches = set(parameters(graph).values()), _batches(graph)
    found = False
    for value in list(graph.initializers.values()) if known and batches else ():
        if known.isdisjoint(sources(value)):
            continue
        once = _once(value, batches)
        if once is not None:
            _share(graph, value, once)
            found = True
    return found


def _batches(graph: ir.Graph) -> set[int]:
    """Fixed sizes of batches: how many samples the inputs have, more than one."""
    shapes = [value.shape for value in graph.inputs if value.name not in graph.initializers]
    sizes = [shape[0] for shape in shapes if shape is not None and len(shape)]
    return {size for size in sizes if isinstance(size, int) and size > 1}


def _once(value: ir.Value, batches: set[int]) -> np.ndarray | None:
    """What a tensor has for every sample alike, None if it has nothing so.

    Equal numbers do not tell, but that the tensor was expanded does.
    """
    made = read_numbers(value)
    if made is None or not made.size:
        return None
    numbers, axes = made.numpy(), range(len(made.shape))
    if is_uniform(made):
        axes = range(1 if str(value.name).startswith(_EXPANDED) and numbers.ndim > 1 else 0)
    for axis in axes:
        first = numbers.take([0], axis)
        if numbers.shape[axis] in batches and np.array_equal(
            np.broadcast_to(first, numbers.shape), numbers
        ):
            return first
    return None


def _share(graph: ir.Graph, value: ir.Value, once: np.ndarray) -> None:
    """Let the graph repeat what is stored once."""
    name = str(value.name)
    stored = constant(graph, once, unique_name(graph, f"{name}_once"))
    tell_sources(stored, sources(value))
    take_place(graph, value, ir.node("Expand", [stored, shape_of(graph, value)]))
