"""Statistics of activations and gradients, as text files."""

from __future__ import annotations

import pathlib
import re
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onnxtrain.errors import SaveError
from onnxtrain.utils.hooks._subscriber_base import RuntimeStates, SubscriberBase
from onnxtrain.utils.hooks._subscriber_manager import (
    ORT_NO_INCREASE_GLOBAL_STEP,
    GlobalSubscriberManager,
)

ORDER = "order.txt"
"""Beside the files of a step, their names in the order in which they were written."""

Look = Callable[[Tensor, int, str, int], object]
"""What is called with a tensor, the depth of its module, its name and the step."""


class _InspectActivation(torch.autograd.Function):
    """A tensor as it is; functions look at it and at its gradient, also in an exported module."""

    has_effect = True

    @staticmethod
    def forward(
        ctx: Any,
        activation_name: str,
        module_idx: int | None,
        run_ctx: RuntimeStates,
        input_tensor: Tensor,
        module_post_forward: Look,
        module_pre_backward: Look,
    ) -> Tensor:
        states = run_ctx.global_states
        depth = -1 if module_idx is None else states.module_index_to_depth[module_idx]
        ctx.told = depth, activation_name, states.execution_step
        ctx.module_pre_backward = module_pre_backward
        if not ORT_NO_INCREASE_GLOBAL_STEP[0]:
            module_post_forward(input_tensor.detach().clone(), *ctx.told)
        return input_tensor.detach()  # no view, which must not be changed in place

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        ctx.module_pre_backward(grad.detach().clone(), *ctx.told)
        return None, None, None, grad, None, None


def inspect_activation(activation_name: str, tensor: Tensor) -> Tensor:
    """Show a tensor inside a forward function to global StatisticsSubscribers; gives it back."""
    for subscriber in GlobalSubscriberManager._subscribers:
        if isinstance(subscriber, StatisticsSubscriber):
            run = GlobalSubscriberManager.get_run_context()
            tensor = subscriber._seen(activation_name, None, run, tensor)
    return tensor


class StatisticsSubscriber(SubscriberBase):
    """Writes ``<output_dir>/step_<n>/<name>_forward`` and ``..._backward`` with a line per number.

    ``order.txt`` beside them has their names as they came.
    ``onnxtrain.utils.hooks.merge_activation_summary`` makes files of two runs that can be compared.

    Args:
        output_dir: Folder for the files; made if it is not there.
        start_step: The first step that is written.
        end_step: The step after the last.
        override_output_dir: Whether a folder that exists is emptied, instead of refused.
        run_on_cpu: Whether statistics are computed on the CPU, which takes no memory of the GPU.
        bucket_size: Elements that are looked at together.

    Raises:
        SaveError: if the folder exists and may not be emptied.
    """

    def __init__(
        self,
        output_dir: str,
        start_step: int | None = None,
        end_step: int | None = None,
        override_output_dir: bool = False,
        run_on_cpu: bool = False,
        bucket_size: int = 2**29,
    ) -> None:
        super().__init__(start_step, end_step)
        self._folder = pathlib.Path(output_dir)
        self._run_on_cpu = run_on_cpu
        self._bucket = bucket_size
        if self._folder.exists():
            if not override_output_dir:
                raise SaveError(
                    f"folder '{output_dir}' exists\n  give another one, or override_output_dir=True"
                )
            shutil.rmtree(self._folder)

    def post_forward_tensor_apply_impl(
        self, run_rtx: RuntimeStates, module: torch.nn.Module, tensor_index: int, tensor: Tensor
    ) -> Tensor:
        """Look at a result of a module; its name is that of the module, with its number."""
        states = run_rtx.global_states
        name = f"{states.module_to_name[module]}_{tensor_index}"
        return self._seen(name, states.module_to_module_index[module], run_rtx, tensor)

    def _seen(
        self, name: str, module_index: int | None, run_rtx: RuntimeStates, tensor: Tensor
    ) -> Tensor:
        looks = self._if_wanted("module_post_forward_impl", "module_pre_backward_impl")
        found: Tensor = _InspectActivation.apply(name, module_index, run_rtx, tensor, *looks)
        return found

    def _if_wanted(self, *names: str) -> list[Look]:
        """Methods, which are called in the steps that are wanted."""
        skip = super()._need_skip_step

        def method(name: str) -> Look:
            def look(tensor: Tensor, depth: int, label: str, step: int) -> None:
                if not skip(step):
                    getattr(self, name)(tensor, depth, label, step)

            return look

        return [method(name) for name in names]

    def _need_skip_step(self, current_step: int) -> bool:
        """None while a module is exported, which is for all steps."""
        return not ORT_NO_INCREASE_GLOBAL_STEP[0] and super()._need_skip_step(current_step)

    def module_post_forward_impl(
        self, activation: Tensor, depth: int, name: str, step: int
    ) -> None:
        """Write the statistics of an activation."""
        self._write(step, f"{name}_forward", activation)

    def module_pre_backward_impl(
        self, activation: Tensor, depth: int, name: str, step: int
    ) -> None:
        """Write the statistics of a gradient."""
        self._write(step, f"{name}_backward", activation)

    def _write(self, step: int, name: str, tensor: Tensor) -> None:
        folder = self._folder / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        found = statistics(tensor.cpu() if self._run_on_cpu else tensor, self._bucket)
        lines = [f"shape: {list(tensor.shape)}", f"dtype: {tensor.dtype}"]
        lines += [f"{key}: {value:g}" for key, value in found.items()]
        # a module's name may hold what a file's may not
        path = folder / re.sub(r"[^\w.-]", "_", name)
        if not path.exists():
            with (folder / ORDER).open("a") as order:
                order.write(f"{path.name}\n")
        path.write_text("\n".join(lines) + "\n")


def statistics(tensor: Tensor, bucket: int = 2**29) -> dict[str, float]:
    """Minimum, maximum, mean and deviation of the finite elements, and how many are special."""
    flat = tensor.detach().reshape(-1)
    counts = {"negative": 0, "positive": 0, "zero": 0, "inf": 0, "nan": 0}
    low, high, total, squares, finite = torch.inf, -torch.inf, 0.0, 0.0, 0
    for part in flat.split(bucket):
        counts["nan"] += int(part.isnan().sum())
        counts["inf"] += int(part.isinf().sum())
        counts["negative"] += int((part < 0).sum())
        counts["positive"] += int((part > 0).sum())
        counts["zero"] += int((part == 0).sum())
        good = part[part.isfinite()].double()
        if good.numel():
            low, high = min(low, float(good.min())), max(high, float(good.max()))
            total, squares = total + float(good.sum()), squares + float(good.square().sum())
            finite += good.numel()
    mean = total / finite if finite else torch.nan
    deviation = max(0.0, squares / finite - mean * mean) ** 0.5 if finite else torch.nan
    return {"min": low, "max": high, "mean": mean, "std": deviation, **counts}
