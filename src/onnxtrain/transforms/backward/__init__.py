"""Training graphs made leaner once they are differentiated: forward and backward in one operator.

What is written to files stays as the reference has it; these run when a step is planned.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxtrain.transforms.backward.accumulation import hand_over_gradients
from onnxtrain.transforms.backward.added import add_products
from onnxtrain.transforms.backward.bias import join_bias_sums
from onnxtrain.transforms.backward.elementwise import join_elementwise
from onnxtrain.transforms.backward.grouped import join_groups
from onnxtrain.transforms.backward.loop_sums import sum_behind_loops
from onnxtrain.transforms.backward.loss import join_losses
from onnxtrain.transforms.backward.lstms import join_lstms
from onnxtrain.transforms.backward.normalized import join_normalized, join_shortcuts
from onnxtrain.transforms.backward.pooled_relus import pool_first
from onnxtrain.transforms.backward.pools import join_pools
from onnxtrain.transforms.backward.products import turn_products
from onnxtrain.transforms.backward.projection import join_projections
from onnxtrain.transforms.backward.recurrent import join_recurrent
from onnxtrain.transforms.backward.residual import join_residuals
from onnxtrain.transforms.backward.skip import join_skips
from onnxtrain.transforms.backward.stacks import run_on_stacks
from onnxtrain.transforms.backward.sums import (
    join_dropout_sums,
    join_norm_sums,
    join_packed_sums,
)
from onnxtrain.transforms.backward.tied import join_tied

__all__ = ["join"]

STEPS = (
    sum_behind_loops,
    run_on_stacks,
    join_losses,
    join_recurrent,
    join_residuals,
    turn_products,
    join_projections,
    join_bias_sums,
    join_skips,
)
ON_CPU = (pool_first, join_pools, join_lstms)
"""What saves time on a CPU, where torch or a library has kernels for both."""
ON_GPU = (
    join_normalized,
    join_shortcuts,
    join_groups,
    join_norm_sums,
    join_dropout_sums,
    join_packed_sums,
    join_tied,
    add_products,
    hand_over_gradients,
)
"""What saves time on a GPU and costs memory on a CPU."""
COMPILED = (join_elementwise,)
"""What generates kernels."""


def join(
    model: ir.Model,
    on_gpu: bool = False,
    compiled: bool = False,
    without: Collection[str] = (),
) -> int:
    """Join what forward and backward share, in place; gives the number of places.

    Args:
        model: The training model.
        on_gpu: Whether it is to run on a GPU.
        compiled: Whether kernels are generated for what is left.
        without: Names of steps that are left out.
    """
    steps = (*STEPS, *(ON_GPU if on_gpu else ON_CPU), *(COMPILED if compiled else ()))
    return sum(step(model) for step in steps if step.__name__ not in without)
