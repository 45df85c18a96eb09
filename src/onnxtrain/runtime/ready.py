"""From a model to its plan: what no kernel computes is written in operators that have one."""

from __future__ import annotations

from collections.abc import Collection, Hashable

import onnx_ir as ir

from onnxtrain.graph.bindings import bound_types, kinds, opset_of
from onnxtrain.graph.functions import expand_functions
from onnxtrain.graph.prepare import prepare
from onnxtrain.kernels.registry import Kernel, KernelRegistry
from onnxtrain.runtime.lower import LowerOptions, lower
from onnxtrain.runtime.plan import Plan
from onnxtrain.transforms.gradient_op import expand_gradients


def prepared(model: ir.Model) -> ir.Model:
    """Prepare a model that may have Gradient nodes, in place."""
    return prepare(expand_gradients(model))


def planned(
    model: ir.Model,
    registry: KernelRegistry,
    options: LowerOptions | None = None,
    state: Collection[str] = (),
) -> Plan:
    """Expand what has no kernel, in place, and plan; see ``lower``."""
    options = options or LowerOptions()
    kernels: dict[ir.Node, Kernel | None] = {}
    known: dict[Hashable, Kernel | None] = {}

    def has_kernel(node: ir.Node) -> bool:
        domain, op, version = node.domain, node.op_type, opset_of(node, model.opset_imports)
        key = (domain, op, version, kinds(node))
        if key not in known:
            types = bound_types(node, version)
            known[key] = registry.find(domain, op, version, types, options.provider)
        kernels[node] = known[key]
        return known[key] is not None

    return lower(expand_functions(model, has_kernel), registry, options, state, kernels)
