"""What of a plan cannot be repeated without the host."""

from __future__ import annotations

from onnxtrain.runtime import copies
from onnxtrain.runtime.plan import Plan
from onnxtrain.types import op_name

WAITING = frozenset({"Compress", "DynamicTimeWarping", "NonMaxSuppression", "NonZero", "Unique"})
"""Operators whose results have a size that only the device knows."""


def obstacle(plan: Plan) -> str | None:
    """Why a plan cannot be recorded, as far as it tells; None if it seems possible."""
    return "the loss is computed outside of the step" if plan.yields else waiting(plan)


def waiting(plan: Plan) -> str | None:
    """What of a plan needs values of the device, or has effects elsewhere; None if nothing does."""
    to_host = copies.declared(copies.to_host)
    for step in plan.block.walk():
        name = op_name(step.kernel.domain, step.kernel.op)
        if step.kernel is to_host:
            return f"the host waits for '{step.args[0]}'"
        if step.kernel.special not in (None, "yield"):
            return f"{name} (node '{step.node}') does more than compute"
        if step.kernel.op in WAITING:
            return f"the size of what {name} (node '{step.node}') gives depends on values"
        if "rng_host" in step.keywords.values():
            return f"{name} (node '{step.node}') draws on the host"
    return None
