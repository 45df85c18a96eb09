"""What torch's exporter wrote down about tensors: parameters, buffers, and what it computed.

A number that a module learns looks like any other constant of a graph, and a table that it only
reads looks like a weight. Files of this exporter tell them apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from onnxtrain.graph.tidy import was_node
from onnxtrain.graph.torch_export import traced
from onnxtrain.graph.torch_export.traced import (
    PRODUCER,
    SHIFTS,
    given,
    of_number,
    other_names,
    sources,
    tensors,
)
from onnxtrain.types import FLOATS

_FIXED = {
    "BUFFER": "buffer of the torch module",
    "CONSTANT_TENSOR": "constant in the code of the torch module",
}


@dataclasses.dataclass(frozen=True)
class Exported:
    """What a file says about its tensors; nothing if another exporter wrote it.

    Attributes:
        parameters: Names of the parameters of the module.
        stored: Names of all tensors.
        fixed: Why others are none, by name.
        calls: Parameters by what calls name them.
    """

    parameters: frozenset[str]
    stored: frozenset[str]
    fixed: Mapping[str, str]
    calls: Mapping[str, str]

    @classmethod
    def of(cls, model: ir.Model) -> Exported:
        """What is written in a prepared model."""
        values = list(model.graph.initializers.values())
        told = [(kind, name) for _, kind, name in tensors(model.graph)]
        parameters = frozenset(name for kind, name in told if kind == "PARAMETER")
        fixed = {name: _FIXED[kind] for kind, name in told if kind in _FIXED}
        if told:
            reason = "computed by the exporter, from no parameter"
            fixed |= {str(v.name): reason for v in values if _made(v, parameters)}
        if told or _keeps_parameters(model):
            reason = _FIXED["CONSTANT_TENSOR"]
            fixed |= {str(v.name): reason for v in values if was_node(v) and not sources(v)}
        calls = traced.parameters(model.graph)
        return cls(parameters, frozenset(model.graph.initializers), fixed, calls)

    def is_parameter(self, value: ir.Value) -> bool:
        """Whether a tensor is a parameter, or the sum of one and a number, wherever it is read.

        Exporters write equal numbers once: what is read in several places may be a parameter in
        one of them and any other number in the rest, unless the calls of all name the parameter.
        """
        readers = [node for node, _ in value.uses()]
        if value.name in self.parameters and len(readers) > 1:
            return all(value.name in given(node, self.calls) for node in readers)
        shifted = of_number(value) in SHIFTS and not self.parameters.isdisjoint(sources(value))
        return len(readers) == 1 and (value.name in self.parameters or shifted)

    def made_of(self, value: ir.Value) -> tuple[str, ...]:
        """Parameters that the exporter computed a tensor from, or that it also is."""
        made = [name for name in sources(value) if name in self.parameters]
        made += [name for name in other_names(value) if name in self.parameters - self.stored]
        return tuple(made)


def _keeps_parameters(model: ir.Model) -> bool:
    """Whether torch wrote a file, with parameters as initializers: then none is a node.

    If all tensors are nodes, a module was frozen before, and its parameters are among them.
    """
    if model.producer_name != PRODUCER:
        return False
    stored = [v for v in model.graph.initializers.values() if not was_node(v)]
    return any(v.dtype in FLOATS for v in stored)


def _made(value: ir.Value, parameters: frozenset[str]) -> bool:
    """Whether the exporter made a tensor of others, and of no parameter."""
    names = sources(value)
    return bool(names) and not any(_is_of(name, parameters) for name in names)


def _is_of(name: str, parameters: frozenset[str]) -> bool:
    """Whether a name is a parameter's, or begins so: what a layer was fused with is named so."""
    ends = [index for index, letter in enumerate(name) if letter == "_"]
    return name in parameters or any(name[:end] in parameters for end in ends)
