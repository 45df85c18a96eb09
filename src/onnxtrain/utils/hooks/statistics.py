"""Statistics of activations and gradients, as text files."""

from __future__ import annotations

import pathlib
import re
import shutil

import torch
from torch import Tensor

from onnxtrain.errors import SaveError
from onnxtrain.utils.hooks.manager import SubscriberBase

ORDER = "order.txt"
"""Beside the files of a step, their names in the order in which they were written."""


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

    def on_activation(self, step: int, name: str, tensor: Tensor) -> None:
        """Write the statistics of an activation."""
        self._write(step, f"{name}_forward", tensor)

    def on_gradient(self, step: int, name: str, grad: Tensor) -> None:
        """Write the statistics of a gradient."""
        self._write(step, f"{name}_backward", grad)

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
