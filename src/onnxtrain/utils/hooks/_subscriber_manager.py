"""Hooks on every module of a model, which call subscribers."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onnxtrain.errors import OptionError
from onnxtrain.utils.hooks._subscriber_base import RuntimeStates, SubscriberBase

ORT_NO_INCREASE_GLOBAL_STEP = [False]
"""Whether calls are no steps, as those while an ORTModule is exported."""
S = TypeVar("S", bound=SubscriberBase)


@contextlib.contextmanager
def no_increase_global_step() -> Iterator[None]:
    """With: calls of a model are no steps."""
    before = ORT_NO_INCREASE_GLOBAL_STEP[0]
    ORT_NO_INCREASE_GLOBAL_STEP[0] = True
    try:
        yield
    finally:
        ORT_NO_INCREASE_GLOBAL_STEP[0] = before


class _IncrementStep(torch.autograd.Function):
    """A tensor as it is; the step ends. In an exported module it is a node that does so."""

    has_effect = True

    @staticmethod
    def forward(ctx: Any, run_ctx: RuntimeStates, tensor: Tensor) -> Tensor:
        _end_step(run_ctx)
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        return None, grad


def _end_step(run_ctx: RuntimeStates) -> None:
    if not ORT_NO_INCREASE_GLOBAL_STEP[0]:
        run_ctx.global_states.execution_step += 1


class SubscriberManager:
    """Holds the subscribers of one model at a time. A step is a call of the model."""

    def __init__(self) -> None:
        self._subscribers: list[SubscriberBase] = []
        self._handles: list[Any] = []
        self._run_ctx = RuntimeStates()

    def subscribe(self, module: torch.nn.Module, subscribers: Iterable[SubscriberBase]) -> None:
        """Call subscribers for the modules inside a module; those of another are called no more.

        Raises:
            OptionError: if something else is given.
        """
        given = list(subscribers)
        if not isinstance(module, torch.nn.Module):
            raise OptionError(f"subscribers look at a torch.nn.Module, not {type(module).__name__}")
        if not given:
            raise OptionError("there are no subscribers\n  unsubscribe() takes hooks away")
        if other := next((s for s in given if not isinstance(s, SubscriberBase)), None):
            raise OptionError(f"a subscriber is a SubscriberBase, not {type(other).__name__}")
        self.unsubscribe()
        self._run_ctx = RuntimeStates()
        self._subscribers = given
        module = next(module.modules())  # the one that an ORTModule stands for
        self._number(module)
        self._handles.append(module.register_forward_pre_hook(self._before_all()))
        for inner in module.modules():
            before = inner.register_forward_pre_hook(self._before(), with_kwargs=True)
            self._handles += [before, inner.register_forward_hook(self._after())]
        # registered last, so that the outermost module itself still belongs to its step
        self._handles.append(module.register_forward_hook(self._after_all()))

    def unsubscribe(self) -> None:
        """Take all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._subscribers = []

    def get_subscriber(self, subscriber_type: type[S]) -> S:
        """The subscriber of a class.

        Raises:
            OptionError: if there is none.
        """
        for subscriber in self._subscribers:
            if isinstance(subscriber, subscriber_type):
                return subscriber
        have = ", ".join(type(s).__name__ for s in self._subscribers) or "none"
        raise OptionError(f"there is no subscriber {subscriber_type.__name__}\n  have  {have}")

    def get_run_context(self) -> RuntimeStates:
        """What subscribers are told of the step and the modules."""
        return self._run_ctx

    def _number(self, module: torch.nn.Module) -> None:
        states = self._run_ctx.global_states
        for index, (name, inner) in enumerate(module.named_modules()):
            states.module_to_module_index[inner] = index
            states.module_index_to_depth[index] = name.count(".") + 2 if name else 1
            states.module_to_name[inner] = name or type(module).__name__

    # hooks are functions: copies of a module share them, but not the manager's methods

    def _before_all(self) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Any) -> None:
            if module not in self._run_ctx.global_states.module_to_module_index:
                self._number(module)  # a copy, which has the hooks too

        return hook

    def _before(self) -> Callable[..., tuple[Any, Any]]:
        def hook(module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
            run = self._run_ctx
            for subscriber in self._subscribers:
                args, kwargs = subscriber.pre_forward_module_apply(run, module, args, kwargs)
            for subscriber in self._subscribers:
                apply = functools.partial(subscriber.pre_forward_tensor_apply, run, module)
                args, kwargs = _each(apply, args), _each(apply, kwargs)
            return args, kwargs

        return hook

    def _after(self) -> Callable[..., Any]:
        def hook(module: torch.nn.Module, args: Any, outputs: Any) -> Any:
            run = self._run_ctx
            for subscriber in self._subscribers:
                _, outputs = subscriber.post_forward_module_apply(run, module, args, outputs)
            for subscriber in self._subscribers:
                apply = functools.partial(subscriber.post_forward_tensor_apply, run, module)
                outputs = _each(apply, outputs)
            return outputs

        return hook

    def _after_all(self) -> Callable[..., Any]:
        def hook(module: torch.nn.Module, args: Any, outputs: Any) -> Any:
            run = self._run_ctx
            for subscriber in self._subscribers:
                args, outputs = subscriber.post_forward_outmost_module_apply(
                    run, module, args, outputs
                )
            if not ORT_NO_INCREASE_GLOBAL_STEP[0]:
                _end_step(run)
                return outputs

            def first_ends(index: int, tensor: Tensor) -> Tensor:
                return tensor if index else _IncrementStep.apply(run, tensor)  # type: ignore[no-any-return]

            return _each(first_ends, outputs)

        return hook


def _each(function: Callable[[int, Tensor], Tensor], data: Any) -> Any:
    """Nested data with a function of its number and itself in the place of each tensor."""
    leaves, spec = pytree.tree_flatten(data)
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    for index, place in enumerate(places):
        leaves[place] = function(index, leaves[place])
    return pytree.tree_unflatten(leaves, spec)


GlobalSubscriberManager = SubscriberManager()
"""The manager whose subscribers ``inspect_activation`` shows tensors to."""
