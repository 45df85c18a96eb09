"""The one gradient operator for all operators that have none of their own."""

from __future__ import annotations

from onnxtrain.graph.schemas.declare import ANY, op, required
from onnxtrain.graph.schemas.infer import same_as_each
from onnxtrain.types import OWN

OPS = (
    op(
        "VectorJacobian",
        "values+: each T -> gradients+: each T",
        domain=OWN,
        T=ANY,
        of=required("string"),
        of_domain="",
        version=required("int"),
        taken=required("int"),
        given=required("int"),
        order=1,
        options="{}",
        infer=same_as_each(),
    ),
)
