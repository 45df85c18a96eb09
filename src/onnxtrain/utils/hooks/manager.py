"""Hooks on every module of a model, which hand tensors to subscribers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from onnxtrain.errors import OptionError


class SubscriberBase:
    """Is told of every activation and gradient of the steps from ``start_step`` to ``end_step``.

    Args:
        start_step: The first step; None for the very first.
        end_step: The step after the last; None for no end.
    """

    def __init__(self, start_step: int | None = None, end_step: int | None = None) -> None:
        self.start_step = start_step
        self.end_step = end_step

    def wants(self, step: int) -> bool:
        """Whether a step is one of those."""
        late = self.end_step is not None and step >= self.end_step
        return not late and step >= (self.start_step or 0)

    def on_activation(self, step: int, name: str, tensor: Tensor) -> None:
        """Take an activation; the name is that of the module, with a number for each output."""

    def on_gradient(self, step: int, name: str, grad: Tensor) -> None:
        """Take the gradient of an activation."""


class SubscriberManager:
    """Holds the subscribers of one model at a time. A step is a call of the model."""

    def __init__(self) -> None:
        self._subscribers: list[SubscriberBase] = []
        self._handles: list[Any] = []
        self._step = 0

    def subscribe(self, module: torch.nn.Module, subscribers: Iterable[SubscriberBase]) -> None:
        """Let subscribers see what the modules inside a module compute.

        Raises:
            OptionError: if a model is being watched already.
        """
        if self._handles:
            raise OptionError("a model is being watched already\n  call unsubscribe() first")
        self._subscribers = list(subscribers)
        self._step = 0
        for name, inner in module.named_modules():
            label = name or type(module).__name__
            self._handles.append(inner.register_forward_hook(self._hook(label)))
        # registered last, so that the outermost module itself still belongs to its step
        self._handles.append(module.register_forward_hook(self._count))

    def unsubscribe(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._subscribers.clear()

    def show(self, name: str, tensor: Tensor) -> None:
        """Show a tensor, and later its gradient, to those who want this step."""
        step = self._step
        watching = [subscriber for subscriber in self._subscribers if subscriber.wants(step)]
        for subscriber in watching:
            subscriber.on_activation(step, name, tensor.detach())
        if watching and tensor.requires_grad:

            def pass_on(grad: Tensor) -> None:
                for subscriber in watching:
                    subscriber.on_gradient(step, name, grad.detach())

            tensor.register_hook(pass_on)

    def _hook(self, label: str) -> Any:
        def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            del module, inputs
            for index, tensor in enumerate(_tensors(output)):
                self.show(f"{label}_{index}", tensor)

        return hook

    def _count(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        del module, inputs, output
        self._step += 1


def _tensors(value: Any) -> Iterator[Tensor]:
    """Tensors in a nested result, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


GlobalSubscriberManager = SubscriberManager()
"""The manager whose subscribers ``inspect_activation`` shows tensors to."""


def inspect_activation(activation_name: str, tensor: Tensor) -> Tensor:
    """Show a tensor inside a forward function to the global subscribers; gives it back."""
    GlobalSubscriberManager.show(activation_name, tensor)
    return tensor
