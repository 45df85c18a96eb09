"""What is called while the modules of a model run, for classes that look at tensors or change them.

Names and arguments are those of onnxruntime-training, so that subscribers written for it run here.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor


class _GlobalStates:
    """What is known of a model whose modules have hooks.

    Attributes:
        execution_step: How many calls of the model have ended.
        module_to_module_index: The number of each module, as ``named_modules`` counts them.
        module_index_to_depth: For each number how deep the module lies; the model itself has 1.
        module_to_name: Its name in the model; the model itself has that of its class.
    """

    def __init__(self) -> None:
        self.execution_step = 0
        self.module_to_module_index: dict[torch.nn.Module, int] = {}
        self.module_index_to_depth: dict[int, int] = {}
        self.module_to_name: dict[torch.nn.Module, str] = {}


class RuntimeStates:
    """What subscribers are told besides modules and tensors, in ``global_states``."""

    def __init__(self) -> None:
        self.global_states = _GlobalStates()


class SubscriberBase:
    """Is called for every module of a model in steps from ``start_step`` to before ``end_step``.

    Subclasses write the methods that end with ``_impl``; each gives back what it was given, or what
    is to take its place. For a module, ``pre_forward_module_apply_impl`` comes before
    ``pre_forward_tensor_apply_impl`` of every tensor in its arguments, and after the call
    ``post_forward_module_apply_impl`` before ``post_forward_tensor_apply_impl`` of every result.
    ``post_forward_outmost_module_apply_impl`` ends a step. To see gradients too, pass a tensor
    through a ``torch.autograd.Function``, as ``StatisticsSubscriber`` does.

    Args:
        start_step: The first step; None for the very first.
        end_step: The step after the last; None for no end.
    """

    def __init__(self, start_step: int | None = None, end_step: int | None = None) -> None:
        self._start_step = 0 if start_step is None else start_step
        self._end_step = sys.maxsize if end_step is None else end_step

    def pre_forward_module_apply(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Arguments of a module that is about to run."""
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return args, kwargs
        return self.pre_forward_module_apply_impl(run_rtx, module, args, kwargs)

    def pre_forward_module_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """The same, in a step that is wanted."""
        return args, kwargs

    def pre_forward_tensor_apply(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, tensor_index: int, tensor: Tensor
    ) -> Tensor:
        """A tensor in the arguments; those with names are counted for themselves."""
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return tensor
        return self.pre_forward_tensor_apply_impl(run_rtx, module, tensor_index, tensor)

    def pre_forward_tensor_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, tensor_index: int, tensor: Tensor
    ) -> Tensor:
        """The same, in a step that is wanted."""
        return tensor

    def post_forward_module_apply(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, outputs: Any
    ) -> tuple[Any, Any]:
        """Arguments and results of a module that has run."""
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return args, outputs
        return self.post_forward_module_apply_impl(run_rtx, module, args, outputs)

    def post_forward_module_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, outputs: Any
    ) -> tuple[Any, Any]:
        """The same, in a step that is wanted."""
        return args, outputs

    def post_forward_tensor_apply(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, tensor_index: int, tensor: Tensor
    ) -> Tensor:
        """A tensor in the results."""
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return tensor
        return self.post_forward_tensor_apply_impl(run_rtx, module, tensor_index, tensor)

    def post_forward_tensor_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, tensor_index: int, tensor: Tensor
    ) -> Tensor:
        """The same, in a step that is wanted."""
        return tensor

    def post_forward_outmost_module_apply(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, outputs: Any
    ) -> tuple[Any, Any]:
        """Arguments and results of the model, at the end of a step."""
        if self._need_skip_step(run_rtx.global_states.execution_step):
            return args, outputs
        return self.post_forward_outmost_module_apply_impl(run_rtx, module, args, outputs)

    def post_forward_outmost_module_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, args: Any, outputs: Any
    ) -> tuple[Any, Any]:
        """The same, in a step that is wanted."""
        return args, outputs

    def _need_skip_step(self, current_step: int) -> bool:
        return not self._start_step <= current_step < self._end_step
