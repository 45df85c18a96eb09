"""Runner: one model with its parameters bound, user inputs in and user outputs out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import onnx_ir as ir
import torch

from onnxtrain.errors import FeedError
from onnxtrain.kernels.library import default_registry
from onnxtrain.runtime.capture import Recorder
from onnxtrain.runtime.feeds import Feeds
from onnxtrain.runtime.heap import keep_freed
from onnxtrain.runtime.lower import LowerOptions
from onnxtrain.runtime.options import SessionOptions
from onnxtrain.runtime.profile import Profiler
from onnxtrain.runtime.program import Program
from onnxtrain.runtime.ready import planned
from onnxtrain.runtime.session import deterministic
from onnxtrain.training.targets import Targets, target_names
from onnxtrain.transforms.backward.accumulation import HAND_OVER_INPUT, HANDED_SUFFIX
from onnxtrain.transforms.precision_copies import COPY_SUFFIX
from onnxtrain.transforms.recipe import Waiting, make_lean
from onnxtrain.transforms.shared_statistics import read_at_their_source
from onnxtrain.transforms.training_graph import (
    BUFFER_SUFFIX,
    FLAG_SUFFIX,
    RESET_INPUT,
    SCALE_INPUT,
)
from onnxtrain.types import CPU, CUDA, Provider

_GRADIENT_SUFFIXES = (BUFFER_SUFFIX, FLAG_SUFFIX, HANDED_SUFFIX, "_grad", COPY_SUFFIX)
_SWITCHES = (RESET_INPUT, HAND_OVER_INPUT)
T = TypeVar("T")


def provider_of(device: torch.device) -> Provider:
    """Whose kernels run on a device."""
    return CUDA if device.type == "cuda" else CPU


def user_inputs(model: ir.Model, bound: Collection[str]) -> list[str]:
    """Inputs that the caller passes: no parameters, gradients or switches."""
    graph = model.graph
    hidden = {*graph.initializers, *bound, *_SWITCHES, SCALE_INPUT}
    names = [str(value.name) for value in graph.inputs]
    return [n for n in names if n not in hidden and not _is_gradient(n, bound)]


def user_outputs(model: ir.Model, bound: Collection[str]) -> list[str]:
    """Outputs that the caller gets: the loss and the model's own."""
    names = [str(value.name) for value in model.graph.outputs]
    return [name for name in names if not _is_gradient(name, bound)]


def _is_gradient(name: str, bound: Collection[str]) -> bool:
    """Whether a name is the gradient of a parameter, its buffer or its flag, or a copy of it."""
    return any(
        name.endswith(suffix) and name.removesuffix(suffix) in bound
        for suffix in _GRADIENT_SUFFIXES
    )


class Runner:
    """A model with its parameters bound.

    Args:
        model: A prepared model.
        bound: Parameters and gradient buffers by name; the model reads and changes them in place.
        device: Where it runs.
        options: Options of the session.
        with_loss: Whether the model ends in a loss, whose targets are checked.

    Attributes:
        handed: Where the outputs are that a step may hand over as gradients, by parameter.
    """

    def __init__(
        self,
        model: ir.Model,
        bound: Mapping[str, torch.Tensor],
        device: torch.device,
        options: SessionOptions,
        with_loss: bool = False,
    ) -> None:
        self.model = model
        targets = target_names(model) if with_loss else frozenset()
        lowering = LowerOptions(
            provider_of(device), options.use_deterministic_compute, options.reuse_storage
        )
        on_gpu = device.type == "cuda"
        compiled = on_gpu if options.compiled is None else options.compiled
        read_at_their_source(model)
        waiting = Waiting(options.recompute, options.compress)
        make_lean(model, on_gpu=on_gpu, compiled=compiled, waiting=waiting)
        names = {value.name for value in model.graph.inputs}
        state = {name: tensor for name, tensor in bound.items() if name in names}
        self.plan = planned(model, default_registry(), lowering, state=state)
        if options.enable_cpu_mem_arena:
            keep_freed(device)
        self.program = Program(self.plan, device, state, seed=options.seed, groups=options.groups)
        self.user_inputs = [a for a in self.plan.inputs if a.name not in _SWITCHES]
        shown = set(user_outputs(model, bound))
        self.outputs = [i for i, a in enumerate(self.plan.outputs) if a.name in shown]
        self._feeds = Feeds(self.user_inputs, device)
        self._targets = Targets(self.user_inputs, targets)
        self.handed = {
            a.name.removesuffix(HANDED_SUFFIX): i
            for i, a in enumerate(self.plan.outputs)
            if a.name.endswith(HANDED_SUFFIX) and HAND_OVER_INPUT in names
        }
        self._options = options
        self.recorder: Recorder | None = None
        if options.capture:
            self.recorder = Recorder(self.program, self.outputs, [self.program], self.plan.inputs)

    def run(self, inputs: Sequence[Any], reset: bool = False) -> list[Any]:
        """User outputs for user inputs.

        Raises:
            FeedError: if there are too few or too many inputs, or one does not fit.
            NodeError: if a kernel fails.
        """
        with self.settings():
            arguments = self.arguments(inputs, reset)
            if self.recorder is not None:
                return self.recorder.run(arguments)
            results = self.program(*arguments)
        return [results[index] for index in self.outputs]

    def run_split(
        self,
        inputs: Sequence[Any],
        reset: bool,
        middle: Callable[[Sequence[torch.Tensor]], tuple[T, Sequence[torch.Tensor | None]]],
    ) -> T:
        """Run a step that hands its outputs out in the middle.

        Args:
            inputs: User inputs.
            reset: Whether gradients are overwritten instead of added to.
            middle: Takes the outputs; gives a result, and the gradient of every output.
        """
        with self.settings():
            outputs, running = self.program.start(*self.arguments(inputs, reset))
            result, grads = middle(outputs)
            self.program.finish(running, grads)
        return result

    def profile(self, inputs: Sequence[Any], repeats: int) -> Profiler:
        """Run a step several times, its gradients overwritten, with a clock around every node."""
        profiler = Profiler(self.program)
        arguments = self.arguments(inputs, reset=True)
        with self.settings():
            for _ in range(repeats):
                profiler(*arguments)
        return profiler

    def settings(self) -> contextlib.AbstractContextManager[None]:
        """With: torch works as the options of the session ask."""
        return deterministic(self._options.use_deterministic_compute)

    def arguments(self, inputs: Sequence[Any], reset: bool, hand_over: bool = False) -> list[Any]:
        """Inputs in order, checked, with the switches where the plan takes them.

        Args:
            inputs: User inputs.
            reset: Whether gradients are overwritten instead of added to.
            hand_over: Whether gradients are outputs, and their buffers are left alone.

        Raises:
            FeedError: if there are too few or too many inputs, or one does not fit.
        """
        if len(inputs) != len(self.user_inputs):
            wanted = ", ".join(a.name for a in self.user_inputs)
            raise FeedError(
                f"expected {len(self.user_inputs)} inputs ({wanted}), got {len(inputs)}"
            )
        pairs = zip(self.user_inputs, inputs, strict=True)
        checked = [self._feeds.one(argument, value) for argument, value in pairs]
        self._targets.check(checked)
        given = iter(checked)
        switches = dict(zip(_SWITCHES, (reset, hand_over), strict=True))
        return [
            torch.tensor([switches[a.name]]) if a.name in switches else next(given)
            for a in self.plan.inputs
        ]
