"""Gradients by torch autograd, for rows of gradient operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def pulled_back(
    function: Callable[..., Any], inputs: Sequence[Tensor | None], dy: Tensor | Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Gradients of ``sum(function(*inputs) * dy)`` in each input that is there."""
    leaves = [None if x is None else x.detach().clone().requires_grad_() for x in inputs]
    there = [leaf for leaf in leaves if leaf is not None]
    with torch.enable_grad():
        results = function(*leaves)
        if isinstance(results, Tensor):
            results, dy = [results], [dy] if isinstance(dy, Tensor) else dy
        return torch.autograd.grad(results, there, list(dy))
