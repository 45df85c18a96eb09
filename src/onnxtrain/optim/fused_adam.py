"""Adam for torch modules: all parameters of a group in a few launches."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.optimizer.sequence import adam_w_optimizer

_TYPES = (torch.float16, torch.float32)


class AdamWMode(enum.IntEnum):
    """How weights decay: as part of the gradient, after the update, or before it."""

    ADAM_L2_REGULARIZATION = 0
    ADAMW_TRANSFORMERS = 1
    ADAMW_TORCH = 2


class FusedAdam(torch.optim.Optimizer):
    """Adam over whole lists of tensors, on the CPU and on CUDA.

    With c1 = 1 - beta1^t and c2 = 1 - beta2^t (1 without bias correction):
    mode 0: g += decay·w, then w -= lr·√c2/c1·m/(√v + eps);
    mode 1: w -= lr·√c2/c1·m/(√v + eps), then w -= lr·decay·w;
    mode 2: w -= lr·decay·w, then w -= lr·m/(c1·(√(v/c2) + eps)).

    Args:
        params: Parameters or groups of them, float16 or float32.
        lr: Learning rate.
        bias_correction: Whether moments are corrected for their start at 0.
        betas: Shares of the moments that are kept.
        eps: Added to the root of the second moment.
        adam_w_mode: How weights decay.
        weight_decay: Weight decay.
        set_grad_none: Whether ``zero_grad`` always removes gradients.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        adam_w_mode: AdamWMode = AdamWMode.ADAMW_TRANSFORMERS,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        self._adam_w_mode = AdamWMode(adam_w_mode)
        self._set_grad_none = set_grad_none

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove gradients, or make them 0 if neither this call nor the optimizer wants that."""
        super().zero_grad(set_to_none=self._set_grad_none or set_to_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all parameters that have gradients; gives what the closure gives.

        Raises:
            RuntimeError: if a gradient is sparse, or a parameter neither float16 nor float32.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            found = [p for p in group["params"] if p.grad is not None]
            _check(found)
            for dtype in _TYPES:
                if same := [p for p in found if p.dtype == dtype]:
                    self._update(group, same)
        return loss

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        """Move parameters of one type."""
        for p in params:
            if not self.state[p]:
                self.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        lists = [params, [p.grad for p in params if p.grad is not None]]
        lists += [[self.state[p][key] for p in params] for key in ("exp_avg", "exp_avg_sq")]
        half = params[0].dtype == torch.float16
        work = [[t.float() for t in items] for items in lists] if half else lists
        self._adam(group, *work)
        if half:
            for index in (0, 2, 3):
                torch._foreach_copy_(lists[index], work[index])

    def _adam(
        self,
        group: dict[str, Any],
        weights: list[Tensor],
        grads: list[Tensor],
        first: list[Tensor],
        second: list[Tensor],
    ) -> None:
        """One step in float32, with decay where the mode wants it."""
        lr, decay, mode = group["lr"], group["weight_decay"], self._adam_w_mode
        corrected = bool(group["bias_correction"])
        if mode == AdamWMode.ADAM_L2_REGULARIZATION and decay:
            grads = list(torch._foreach_add(grads, weights, alpha=decay))
        if mode == AdamWMode.ADAMW_TORCH and decay:
            torch._foreach_mul_(weights, 1 - lr * decay)
        adam_w_optimizer(
            lr,
            group["step"],
            weights,
            grads,
            first,
            second,
            # without correction both modes say the same, and mode 0 insists on it
            adam_mode=0 if mode == AdamWMode.ADAMW_TORCH and corrected else 1,
            alpha=group["betas"][0],
            beta=group["betas"][1],
            correct_bias=int(corrected),
            epsilon=group["eps"],
            weight_decay=decay if mode == AdamWMode.ADAMW_TRANSFORMERS else 0.0,
        )


def _check(params: Iterable[Tensor]) -> None:
    for p in params:
        if p.grad is not None and p.grad.is_sparse:
            raise RuntimeError("FusedAdam does not support sparse gradients")
        if p.dtype not in _TYPES:
            raise RuntimeError("FusedAdam only support fp16 and fp32.")
