"""Gradients of any order of operators that have no gradient operator of their own.

A forward kernel is a torch function, so torch can differentiate it: the kernel runs again, this
time recorded, and torch's autograd goes back through it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from onnxtrain.kernels.recordable import recordable
from onnxtrain.kernels.registry import BOTH, DECLARED, Kernel, kernel
from onnxtrain.types import OWN, op_name

Values = Sequence[Any]
Function = Callable[[Values, Sequence[bool]], Values]
"""From inputs, and which outputs are wanted, to outputs."""


@kernel("VectorJacobian", domain=OWN, outputs=0, needs=["wanted"])
def vector_jacobian(
    *values: Any,
    of: str,
    of_domain: str = "",
    version: int,
    taken: int,
    given: int,
    order: int = 1,
    options: str = "{}",
    wanted: tuple[bool, ...],
) -> Values:
    """Gradients of the inputs of an operator, given its inputs and the gradients of its outputs.

    Order n + 1 is the same of order n: its inputs are all of order n, followed by gradients of what
    order n gives.
    """
    function: Function = _Call(of_domain, of, version, given, options, order).run
    for _ in range(order - 1):
        function = functools.partial(_pull, function, taken, keep=True)
        taken, given = taken + given, taken
    full = [*values, *[None] * (taken + given - len(values))]
    with _repeatable(order):
        found = _pull(function, taken, full, wanted, keep=False)
    return [_own(grad, values) for grad in found]


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of the forward kernel, with what a planner would bind."""

    domain: str
    op: str
    version: int
    outputs: int
    options: str
    order: int

    def run(self, values: Values, wanted: Sequence[bool]) -> Values:
        item = forward_kernel(self.domain, self.op, self.version)
        function = recordable(self.domain, self.op, item.fn, self.order)
        given = [self._prepared(item, index, value) for index, value in enumerate(values)]
        while given and given[-1] is None:
            given.pop()
        bound = {
            "wanted": tuple(wanted),
            "opset": self.version,
            "deterministic": False,
            "rng": None,
            "device": next(v.device for v in values if isinstance(v, Tensor)),
        }
        needs = {name: bound[name] for name in item.needs}
        result = function(*given, **options_of(self.options), **needs)
        results = [result] if item.outputs == 1 else list(result)
        return [*results, *[None] * self.outputs][: self.outputs]

    def _prepared(self, item: Kernel, index: int, value: Any) -> Any:
        """A tensor, or what the planner makes of it for the host."""
        on_host = value is not None and item.input_name(index) in item.host
        return value.tolist() if on_host else value


@functools.lru_cache(maxsize=256)
def forward_kernel(domain: str, op: str, version: int) -> Kernel:
    """The kernel of an operator that runs everywhere, which is the one that torch can record."""
    found = [
        item
        for item in DECLARED.kernels()
        if (item.domain, item.op, item.on) == (domain, op, BOTH) and item.takes(version, {})
    ]
    if len(found) != 1:
        raise ValueError(f"{len(found)} portable kernels for {op_name(domain, op)} {version}")
    return found[0]


@functools.lru_cache(maxsize=256)
def options_of(text: str) -> dict[str, Any]:
    """Attributes of the forward node, lists as the tuples that kernels take."""
    read = json.loads(text)
    return {name: tuple(v) if isinstance(v, list) else v for name, v in read.items()}


def _pull(
    function: Function, count: int, values: Values, wanted: Sequence[bool], *, keep: bool
) -> list[Tensor | None]:
    """Gradients of the first ``count`` values that are wanted; the others are those of outputs.

    Args:
        function: What is differentiated.
        count: How many inputs it has.
        values: Its inputs, and the gradient (or None) of each of its outputs.
        wanted: Which gradients are asked for.
        keep: Whether the gradients will be differentiated again.
    """
    grads = values[count:]
    asked = [i for i, want in enumerate(wanted) if want and _is_real(values[i])]
    with torch.enable_grad():
        leaves = [_leaf(value) if _is_real(value) else value for value in values[:count]]
        results = function(leaves, [grad is not None for grad in grads])
        pairs = [
            (result, grad)
            for result, grad in zip(results, grads, strict=True)
            if grad is not None and isinstance(result, Tensor) and result.requires_grad
        ]
        found: Sequence[Tensor | None] = [None] * len(asked)
        if pairs and asked:
            ys, dys = zip(*pairs, strict=True)
            xs = [leaves[i] for i in asked]
            found = torch.autograd.grad(ys, xs, dys, create_graph=keep, allow_unused=True)
    full: list[Tensor | None] = [None] * len(wanted)
    for index, grad in zip(asked, found, strict=True):
        full[index] = torch.zeros_like(values[index]) if grad is None else grad
    return full


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype.is_floating_point


def _leaf(value: Tensor) -> Tensor:
    """A tensor of its own in autograd's graph: one that comes in twice has two gradients."""
    return value.view_as(value) if value.requires_grad else value.detach().requires_grad_()


@contextlib.contextmanager
def _repeatable(order: int) -> Iterator[None]:
    """Torch's fused attention can be differentiated once; its plain form as often as you like."""
    if order == 1:
        yield
        return
    with sdpa_kernel(SDPBackend.MATH):
        yield


def _own(grad: Tensor | None, values: Values) -> Tensor | None:
    """The gradient in storage of its own: some are nothing but an incoming gradient."""
    if grad is None:
        return None
    # not by its address, which a tensor of a rehearsal does not have
    taken = {v.untyped_storage()._cdata for v in values if isinstance(v, Tensor)}
    return grad.clone() if grad.untyped_storage()._cdata in taken else grad
