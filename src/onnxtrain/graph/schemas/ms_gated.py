"""Gates, norms and mixtures of experts of newer language models."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import op, optional
from onnxtrain.graph.schemas.infer import same_as
from onnxtrain.types import FLOATS

OPS = (
    op(
        "GatedRMSNorm",
        "X: T, scale: T, gate: T -> Y: T",
        T=FLOATS,
        activation="silu",
        epsilon=1e-5,
        infer=same_as(0),
    ),
    op(
        "BranchwiseRMSNorm",
        "X: T, scale?: M -> Y: T",
        T=FLOATS,
        M=FLOATS,
        epsilon=1e-5,
        num_branches=0,
        infer=same_as(0),
    ),
    op(
        "LinearAttentionGate",
        "a: T, dt_bias: TF, decay_scale: TF, b?: T -> decay: T, beta?: T",
        T=FLOATS,
        TF=FLOATS,
        infer=(same_as(0), same_as(0)),
    ),
    op(
        "MoE",
        "input: T, router_probs: T, fc1_experts_weights: T, fc1_experts_bias?: T, "
        "fc2_experts_weights: T, fc2_experts_bias?: T, fc3_experts_weights?: T, "
        "fc3_experts_bias?: T -> output: T",
        T=FLOATS,
        activation_alpha=1.0,
        activation_beta=0.0,
        activation_type="relu",
        k=1,
        normalize_routing_weights=0,
        swiglu_fusion=0,
        swiglu_limit=optional("float"),
        use_sparse_mixer=0,
        infer=same_as(0),
    ),
)
