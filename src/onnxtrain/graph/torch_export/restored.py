"""Parameters as the torch module has them, where an exporter merged or dropped some."""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.graph.torch_export.biases import restore_biases
from onnxtrain.graph.torch_export.copied_results import tell_results
from onnxtrain.graph.torch_export.eliminated import restore_calls
from onnxtrain.graph.torch_export.folded import join_forms
from onnxtrain.graph.torch_export.inverted import invert
from onnxtrain.graph.torch_export.joined import part
from onnxtrain.graph.torch_export.masked import unmask
from onnxtrain.graph.torch_export.merged import separate
from onnxtrain.graph.torch_export.overlapping import join_parts
from onnxtrain.graph.torch_export.scaled import unscale
from onnxtrain.graph.torch_export.shared_rows import share_rows
from onnxtrain.graph.torch_export.shared_steps import restore_steps
from onnxtrain.graph.torch_export.shifted import shift


def restore(model: ir.Model) -> bool:
    """Give layers weights of their own, and those that were dropped, in place; whether it did.

    In this order: a weight that is apart tells what was made of it, and which bias of its layer is
    missing; what then is nowhere belonged to a call that was left out. What belongs to all samples
    is one then.
    """
    steps = (
        *(separate, part, shift, unscale, invert, restore_biases, restore_steps, restore_calls),
        *(tell_results, unmask, share_rows, join_forms, join_parts),
    )
    return any([step(model) for step in steps])
