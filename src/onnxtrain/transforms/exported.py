"""What torch's exporter wrote down about tensors: parameters, buffers, and what it computed.

A number that a module learns looks like any other constant of a graph, and a table that it only
reads looks like a weight. Files of this exporter tell them apart.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import onnx_ir as ir

from onnxtrain.graph.folded import sources

_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_TENSOR = re.compile(r"^\S+: (PARAMETER|BUFFER) target='(.+?)'", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Exported:
    """What a file says about its tensors; nothing if another exporter wrote it.

    Attributes:
        parameters: Names of the parameters of the module.
        fixed: Why others are none, by name.
    """

    parameters: frozenset[str]
    fixed: Mapping[str, str]

    @classmethod
    def of(cls, graph: ir.Graph) -> Exported:
        """What is written in a graph."""
        told = _TENSOR.findall(graph.metadata_props.get(_SIGNATURE, ""))
        parameters = frozenset(name for kind, name in told if kind == "PARAMETER")
        fixed = {name: "buffer of the torch module" for kind, name in told if kind == "BUFFER"}
        if told:
            reason = "computed by the exporter, from no parameter"
            names = [str(v.name) for v in graph.initializers.values() if _made(v, parameters)]
            fixed |= dict.fromkeys(names, reason)
        return cls(parameters, fixed)

    def is_parameter(self, value: ir.Value) -> bool:
        """Whether a tensor is a parameter wherever it is read.

        Exporters write equal numbers once: what is read in several places may be a parameter in
        one of them and any other number in the rest.
        """
        return value.name in self.parameters and len(value.uses()) == 1


def _made(value: ir.Value, parameters: frozenset[str]) -> bool:
    """Whether the exporter made a tensor of others, and of no parameter."""
    names = sources(value)
    return bool(names) and not any(_is_of(name, parameters) for name in names)


def _is_of(name: str, parameters: frozenset[str]) -> bool:
    """Whether a name is a parameter's, or begins so: what a layer was fused with is named so."""
    ends = [index for index, letter in enumerate(name) if letter == "_"]
    return name in parameters or any(name[:end] in parameters for end in ends)
