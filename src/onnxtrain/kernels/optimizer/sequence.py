"""Optimizers over whole lists of tensors; a few launches serve all of them.

Weights, moments and gradients are overwritten in place. Lists of different element types are
computed in the widest of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels import fast
from onnxtrain.kernels.precision import acc
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.scalars import shape_of, single
from onnxtrain.types import MS

Tensors = list[Tensor]


@kernel(
    "AdamWOptimizer",
    domain=MS,
    outputs=4,
    host=["lr", "step", "update_signal"],
    host_out=[0],
    mutates=["weights", "momentums_1", "momentums_2"],
    view={"weights": 1, "momentums_1": 2, "momentums_2": 3},
)
def adam_w_optimizer(
    lr: Any,
    step: Any,
    weights: Tensors,
    gradients: Tensors,
    momentums_1: Tensors,
    momentums_2: Tensors,
    update_signal: Any = None,
    *,
    adam_mode: int = 0,
    alpha: float = 0.9,
    beta: float = 0.999,
    correct_bias: int = 1,
    epsilon: float = 1e-8,
    weight_decay: float = 1e-2,
) -> tuple[Tensor, Tensors, Tensors, Tensors]:
    """m = alpha m + (1 - alpha) g; v = beta v + (1 - beta) g^2; c1, c2 = 1 - alpha^t, 1 - beta^t.

    Mode 0: w -= lr * weight_decay * w, then w -= lr * m / (c1 * (sqrt(v) / sqrt(c2) + epsilon)).
    Mode 1: w -= lr * sqrt(c2) / c1 * m / (sqrt(v) + epsilon), then w -= lr * weight_decay * w.
    """
    _check_modes(adam_mode, correct_bias)
    _check("gradient", weights, gradients)
    _check("first momentum", weights, momentums_1)
    _check("second momentum", weights, momentums_2)
    updates = update_signal is None or bool(single(update_signal))
    if updates:
        rate = float(single(lr))
        # an infinite step makes every correction 1
        count = float(single(step)) if correct_bias else math.inf
        lists = [weights, gradients, momentums_1, momentums_2]
        if adam_mode == 0:
            _adam(lists, rate, count, alpha, beta, weight_decay, epsilon)
        else:
            root = math.sqrt(1 - beta**count)
            _adam(lists, rate, count, alpha, beta, 0.0, epsilon / root if root else math.inf)
            if weight_decay:
                torch._foreach_mul_(weights, 1 - rate * weight_decay)
    flag = torch.full(shape_of(step), updates)
    return flag, weights, momentums_1, momentums_2


@kernel(
    "SGDOptimizerV2",
    domain=MS,
    outputs=2,
    host=["lr", "update_signal"],
    host_out=[0],
    mutates=["weights"],
    view={"weights": 1},
)
def sgd_optimizer_v2(
    lr: Any, weights: Tensors, gradients: Tensors, update_signal: Any = None
) -> tuple[Tensor, Tensors]:
    """w -= lr * g for every weight."""
    _check("gradient", weights, gradients)
    updates = update_signal is None or bool(single(update_signal))
    if updates:
        work = _common([weights, gradients])
        wide = _cast(weights, work)
        torch._foreach_add_(wide, _cast(gradients, work), alpha=-float(single(lr)))
        _store(weights, wide)
    return torch.full(shape_of(lr), updates), weights


@kernel("InplaceClipGradNorm", domain=MS, mutates=["gradients"], view="gradients")
def inplace_clip_grad_norm(
    gradients: Tensors, *, max_norm: float = 1.0, norm_type: str = "fro"
) -> Tensors:
    """g *= min(max_norm / (n + 1e-6), 1), with n the norm of all gradients together."""
    if norm_type != "fro":
        raise ValueError(f"norm type '{norm_type}' is not supported, must be 'fro'")
    if not gradients:
        return gradients
    if _together(gradients):
        fast.load("many").clip(gradients, max_norm)
        return gradients
    dtype = gradients[0].dtype
    norms = torch._foreach_norm(gradients, 2, acc(dtype))
    norm = torch.linalg.vector_norm(torch.stack(norms))
    # fmin: a norm that is not a number leaves the gradients as they are
    factor = torch.fmin(max_norm / (norm + 1e-6), torch.ones_like(norm))
    torch._foreach_mul_(gradients, factor.to(dtype))
    return gradients


def _adam(
    lists: Sequence[Tensors],
    rate: float,
    step: float,
    alpha: float,
    beta: float,
    decay: float,
    epsilon: float,
) -> None:
    """Torch's fused AdamW over [weights, gradients, first moments, second moments]."""
    lists = [[t for t in items if t.numel()] for items in lists]
    if not lists[0]:
        return
    if _together(*lists):
        corrections = (1 - alpha**step, math.sqrt(1 - beta**step))
        fast.load("many").adam_w(lists, rate, decay, (alpha, beta), corrections, epsilon)
        return
    work = _common(lists)
    wide = [_cast(items, work) for items in lists]
    device = wide[0][0].device
    count = torch.full((), step, dtype=torch.float32, device=device)
    torch._fused_adamw_(  # type: ignore[call-overload]
        *wide,
        [],
        [count] * len(wide[0]),
        lr=rate,
        beta1=alpha,
        beta2=beta,
        weight_decay=decay,
        eps=epsilon,
        amsgrad=False,
        maximize=False,
    )
    for index in (0, 2, 3):
        _store(lists[index], wide[index])


def _together(*lists: Tensors) -> bool:
    """Whether one Triton launch serves these lists."""
    first = lists[0]
    if not first[0].is_cuda or sum(t.numel() for t in first) < fast.SMALLEST:
        return False
    wanted = all(fast.ready(items[0], smallest=0) for items in lists)
    return wanted and bool(fast.load("many").aligned(*lists))


def _common(lists: Sequence[Tensors]) -> torch.dtype:
    """The type that holds the values of all lists."""
    found = lists[0][0].dtype
    for items in lists[1:]:
        found = torch.promote_types(found, items[0].dtype)
    return found


def _cast(items: Tensors, dtype: torch.dtype) -> Tensors:
    """Contiguous tensors of the type; the same ones if they are that already."""
    if items[0].dtype != dtype:
        wide = [torch.empty(t.shape, dtype=dtype, device=t.device) for t in items]
        torch._foreach_copy_(wide, items)
        return wide
    return [t if t.is_contiguous() else t.contiguous() for t in items]


def _store(items: Tensors, wide: Tensors) -> None:
    """Write results back where they were computed in copies."""
    if any(a is not b for a, b in zip(items, wide, strict=True)):
        torch._foreach_copy_(items, wide)


def _check_modes(adam_mode: int, correct_bias: int) -> None:
    if adam_mode not in (0, 1):
        raise ValueError(f"the value of adam_mode is invalid: {adam_mode}, must be 0 or 1")
    if correct_bias not in (0, 1):
        raise ValueError(f"the value of correct_bias is invalid: {correct_bias}, must be 0 or 1")
    if adam_mode == 0 and correct_bias != 1:
        raise ValueError("the correct_bias should be 1 for adam_mode = 0")


def _check(name: str, weights: Tensors, others: Tensors) -> None:
    """Refuse an empty list, and lists that do not fit the weights."""
    if not weights:
        raise ValueError("invalid count of tensors in Seq<Tensor>: there are no weights")
    if len(weights) != len(others):
        raise ValueError(f"number of weights and {name}s mismatch: {len(weights)}, {len(others)}")
    if [t.shape for t in weights] == [t.shape for t in others]:
        return
    for index, (weight, other) in enumerate(zip(weights, others, strict=True)):
        if weight.shape != other.shape:
            raise ValueError(
                f"shape of weight and {name} mismatch, weight index:{index}, "
                f"{tuple(weight.shape)} and {tuple(other.shape)}"
            )
