"""From a prepared model to its plan: operators without a kernel become their function bodies."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxtrain.graph.bindings import bound_types, opset_of
from onnxtrain.graph.functions import expand_functions
from onnxtrain.kernels.registry import KernelRegistry
from onnxtrain.runtime.lower import LowerOptions, lower
from onnxtrain.runtime.plan import Plan


def planned(
    model: ir.Model,
    registry: KernelRegistry,
    options: LowerOptions | None = None,
    state: Collection[str] = (),
) -> Plan:
    """Expand what has no kernel, in place, and plan; see ``lower``."""
    options = options or LowerOptions()

    def has_kernel(node: ir.Node) -> bool:
        version = opset_of(node, model.opset_imports)
        types = bound_types(node, version)
        found = registry.find(node.domain, node.op_type, version, types, options.provider)
        return found is not None

    return lower(expand_functions(model, has_kernel), registry, options, state)
