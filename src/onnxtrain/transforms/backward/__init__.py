"""Training graphs made leaner once they are differentiated: forward and backward in one operator.

What is written to files stays as the reference has it; these run when a step is planned.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxtrain.transforms.backward.bias import join_bias_sums
from onnxtrain.transforms.backward.loss import join_losses
from onnxtrain.transforms.backward.normalized import join_normalized
from onnxtrain.transforms.backward.products import turn_products
from onnxtrain.transforms.backward.projection import join_projections
from onnxtrain.transforms.backward.residual import join_residuals

__all__ = ["join"]

STEPS = (
    join_losses,
    join_residuals,
    turn_products,
    join_projections,
    join_bias_sums,
    join_normalized,
)


def join(model: ir.Model) -> int:
    """Join what forward and backward share, in place; gives the number of places."""
    return sum(step(model) for step in STEPS)
