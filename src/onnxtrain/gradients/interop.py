"""Gradients of nodes that call torch: its operators, and autograd functions of users."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.external import where_undefined
from onnxtrain.gradients.known import output_of
from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.gradients.vector_jacobian import pulled_back
from onnxtrain.graph.builder import Ops
from onnxtrain.types import FLOATS, MS, DataType

where_undefined("org.pytorch.aten", "ATen", pulled_back)


@gradient("PythonOp", domain=MS, all_outputs=True)
def python_op(op: Ops, node: ir.Node, dys: Sequence[Grad]) -> list[Grad]:
    """The function's own backward, found again through the context that forward returned."""
    count = len(node.inputs)
    wanted = [int(value is not None and value.dtype in FLOATS) for value in node.inputs]
    options = {
        "func_name": attribute(node, "func_name", ""),
        "output_convention": attribute(node, "input_convention", ""),
        "safe_run_mode": attribute(node, "safe_run_mode", 1),
        "comment": attribute(node, "comment", None),
        "input_tensor_types": attribute(node, "output_tensor_types", ()),
        "input_tensor_ranks": attribute(node, "output_tensor_ranks", ()),
        "output_tensor_types": attribute(node, "input_tensor_types", ()),
        "output_tensor_ranks": attribute(node, "input_tensor_ranks", ()),
        "output_tensor_requires_grads": wanted,
        "tensor_reuse_map": attribute(node, "bw_tensor_reuse_map", None),
    }
    flags = _by_argument(attribute(node, "input_convention", ""), wanted)
    node.attributes["input_requires_grads"] = ir.AttrInt64s("input_requires_grads", flags)
    context = output_of(node, 0, "_context", DataType.INT64, ir.Shape([]))
    told = {name: value for name, value in options.items() if value != ()}
    found = op.emit("PythonOpGrad", (context, *dys[1:]), _domain=MS, _outputs=count, **told)
    grads = [found] if count == 1 else list(found)
    return [grad if want else None for grad, want in zip(grads, wanted, strict=True)]


def _by_argument(convention: str, tensors: Sequence[int]) -> list[int]:
    """The flags of tensors (d) with a 0 in place of each argument that is a constant (c)."""
    if convention.count("d") != len(tensors):
        return list(tensors)
    rest = iter(tensors)
    return [next(rest) if kind == "d" else 0 for kind in convention]
