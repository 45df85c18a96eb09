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
from onnxtrain.transforms.backward.skip import join_skips

__all__ = ["join"]

STEPS = (
    join_losses,
    join_residuals,
    turn_products,
    join_projections,
    join_bias_sums,
    join_skips,
)
ON_GPU = (join_normalized,)
"""What saves time on a GPU and costs memory on a CPU."""


def join(model: ir.Model, on_gpu: bool = False) -> int:
    """Join what forward and backward share, in place; gives the number of places."""
    return sum(step(model) for step in (*STEPS, *(ON_GPU if on_gpu else ())))
