"""Weights of copied layers in files of torch's older exporter.

It makes one tensor of equal ones and lets an Identity stand for each of the others. An Identity
that is called like a parameter was one. Tensors that it computed have names that tell nothing: they
may be of copies of a layer, or of one that is called twice. They are of copies if other parameters
of the same modules are: such whose numbers differ, which no two layers have by chance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

from onnxtrain.graph.constants import is_uniform
from onnxtrain.graph.torch_export.traced import PRODUCER, is_computed
from onnxtrain.types import ONNX

_MERGED = re.compile(r"Identity_\d+")
"""What it calls nodes that it puts in for tensors."""


def identities(model: ir.Model) -> list[ir.Node]:
    """The nodes that stand for parameters of copied layers."""
    if model.producer_name != PRODUCER:
        return []
    merged = [node for node in model.graph if _is_merged(node)]
    named = [node for node in merged if not is_computed(node.outputs[0])]
    copies = {_apart(*_owners(node)) for node in named if _has_own_numbers(node.inputs[0])}
    computed = [n for n in merged if is_computed(n.outputs[0]) and _is_of(n, copies)]
    return [*named, *computed]


def _is_merged(node: ir.Node) -> bool:
    given = node.inputs[0] if node.domain == ONNX and node.op_type == "Identity" else None
    return given is not None and given.is_initializer() and bool(_MERGED.fullmatch(node.name or ""))


def _has_own_numbers(value: ir.Value | None) -> bool:
    tensor = None if value is None else value.const_value
    return tensor is not None and tensor.size > 0 and not is_uniform(tensor)


def _is_of(node: ir.Node, copies: set[tuple[str, str]]) -> bool:
    """Whether what reads a tensor, and what reads an Identity of it, are of copied layers."""
    given = node.inputs[0]
    assert given is not None
    own = set(_modules(node.outputs[0]))
    return len(own) == 1 and any(
        _apart(first, second) in copies for first in _modules(given) for second in own
    )


def _owners(node: ir.Node) -> tuple[str, str]:
    """The modules of two parameters of which one stands for the other."""
    given = node.inputs[0]
    assert given is not None
    first, second = (str(v.name).rpartition(".")[0] for v in (given, node.outputs[0]))
    return first, second


def _modules(value: ir.Value) -> Iterator[str]:
    """The modules that read a value: /a/layers.0/linear/MatMul is of a.layers.0.linear."""
    for node in value.consumers():
        if not _is_merged(node):
            yield (node.name or "").rpartition("/")[0].strip("/").replace("/", ".")


def _apart(first: str, second: str) -> tuple[str, str]:
    """Two paths without the parts at their end that are the same."""
    a, b = first.split("."), second.split(".")
    while a and b and a[-1] == b[-1]:
        del a[-1], b[-1]
    return ".".join(a), ".".join(b)
