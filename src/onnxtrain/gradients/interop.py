"""Gradient of nodes that call a torch autograd function."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxtrain.gradients.rules import Grad, attribute, gradient
from onnxtrain.graph.builder import Ops
from onnxtrain.types import FLOATS, MS


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
    node.attributes["input_requires_grads"] = ir.AttrInt64s("input_requires_grads", wanted)
    found = op.emit(
        "PythonOpGrad", (node.outputs[0], *dys[1:]), _domain=MS, _outputs=count, **options
    )
    grads = [found] if count == 1 else list(found)
    return [grad if want else None for grad, want in zip(grads, wanted, strict=True)]
