"""FP16_Optimizer: quicker overflow checks and norms for mixed-precision optimizers of others."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

_TINY = 1e-6


def FP16_Optimizer(optimizer: Any, **kwargs: Any) -> Any:
    """Replace the slow methods of a mixed-precision optimizer; gives the same object back.

    Known are Megatron's ``FP16_Optimizer`` and DeepSpeed's ZeRO optimizers of stages 1 and 2. An
    optimizer that is not known, or lacks a method that would be replaced, is left as it is.

    Args:
        optimizer: The optimizer.
        **kwargs: ``get_horizontal_model_parallel_rank`` and
            ``get_horizontal_model_parallel_group``, functions for models split over processes.
    """
    if _name(optimizer) == "accelerate.utils.deepspeed.DeepSpeedOptimizerWrapper":
        FP16_Optimizer(optimizer.optimizer, **kwargs)
        return optimizer
    methods = _KNOWN.get(_name(optimizer))
    if methods is None:
        warnings.warn(
            "Skip modifying optimizer because of optimizer name not found in the registry: "
            f"{_name(optimizer)}",
            UserWarning,
            stacklevel=2,
        )
        return optimizer
    if missing := [name for name in methods if not hasattr(optimizer, name)]:
        warnings.warn(
            f"Skip modifying optimizer because {_name(optimizer)} has no {', '.join(missing)}",
            UserWarning,
            stacklevel=2,
        )
        return optimizer
    optimizer._onnxtrain_options = kwargs
    for name, function in methods.items():
        setattr(optimizer, name, types.MethodType(function, optimizer))
    return optimizer


def has_non_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether an element of any tensor is infinite or not a number; waits for the device once."""
    found = [t.detach() for t in tensors]
    if not found:
        return False
    # the norm of the largest magnitude is finite exactly if all elements are
    largest = torch.stack([n.float() for n in torch._foreach_norm(found, math.inf)])
    return not bool(torch.isfinite(largest).all())


def clip_grad_norm_fp32(
    parameters: Tensor | Sequence[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    get_horizontal_model_parallel_rank: Callable[[], int] | None = None,
    get_horizontal_model_parallel_group: Callable[[], Any] | None = None,
) -> float:
    """Scale gradients in place so that their common norm is at most ``max_norm``.

    Parameters without gradients are passed over. With a group the norm is that over all of its
    processes: parameters that are not split over them are counted by the first one only.

    Returns:
        The norm before the scaling.
    """
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    rank = get_horizontal_model_parallel_rank() if get_horizontal_model_parallel_rank else 0
    counted = [p.grad for p in given if p.grad is not None and (_is_split(p) or rank == 0)]
    group = get_horizontal_model_parallel_group() if get_horizontal_model_parallel_group else None
    norm = _norm(counted, float(norm_type), group, given[0].device if given else None)
    factor = float(max_norm) / (norm + _TINY)
    if factor < 1:
        torch._foreach_mul_([p.grad for p in given if p.grad is not None], factor)
    return norm


def _norm(grads: list[Tensor], power: float, group: Any, device: torch.device | None) -> float:
    """Norm of all tensors together, over the processes of a group if there is one."""
    total = torch.zeros((), device=device)
    if grads:
        norms = torch.stack(list(torch._foreach_norm([g.float() for g in grads], power)))
        total = torch.linalg.vector_norm(norms, power)
    if group is None:
        return float(total)
    largest = power == math.inf
    part = total if largest else total**power
    operation = torch.distributed.ReduceOp.MAX if largest else torch.distributed.ReduceOp.SUM
    torch.distributed.all_reduce(part, op=operation, group=group)
    return float(part if largest else part ** (1 / power))


def _is_split(parameter: Tensor) -> bool:
    return bool(getattr(parameter, "model_parallel", False))


def _name(optimizer: Any) -> str:
    kind = type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__}"


def _check_overflow(self: Any, params: Any = None) -> None:
    """Megatron: note whether a gradient overflowed."""
    del params
    groups = [*self.fp16_groups, *self.fp32_from_fp32_groups]
    self.overflow = has_non_finite(p.grad for g in groups for p in g if p.grad is not None)


def _clip_master_grads(self: Any, max_norm: float, norm_type: float = 2) -> float:
    """Megatron: clip the gradients of the float32 copies; -1 after an overflow."""
    if self.overflow:
        return -1
    parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
    return clip_grad_norm_fp32(parameters, max_norm, norm_type, **self._onnxtrain_options)


def _has_overflow_serial(self: Any, params: Iterable[Tensor], *_: Any) -> bool:
    """DeepSpeed: whether a gradient of the parameters overflowed."""
    del self
    return has_non_finite(p.grad for p in params if p.grad is not None)


def _has_overflow_partitioned(self: Any) -> bool:
    """DeepSpeed: whether one of the gradients that this process averaged overflowed."""
    grads = (g for i in range(len(self.bit16_groups)) for g in self.averaged_gradients[i])
    return has_non_finite(g for g in grads if g is not None)


_MEGATRON: dict[str, Callable[..., Any]] = {
    "_check_overflow": _check_overflow,
    "clip_master_grads": _clip_master_grads,
}
_DEEPSPEED: dict[str, Callable[..., Any]] = {
    "has_overflow_serial": _has_overflow_serial,
    "has_overflow_partitioned_grads_serial": _has_overflow_partitioned,
}
_KNOWN: dict[str, dict[str, Callable[..., Any]]] = {
    "megatron.fp16.fp16.FP16_Optimizer": _MEGATRON,
    "deepspeed.runtime.zero.stage2.FP16_DeepSpeedZeroOptimizer": _DEEPSPEED,
    "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer": _DEEPSPEED,
}
"""Methods that are replaced, by the full name of the optimizer's class."""
