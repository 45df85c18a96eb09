"""The processes of a run: ``torchrun`` starts them, all share the work, the first one speaks."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from onnxtrain.cli.device import checked_device
from onnxtrain.distributed.layout import LAUNCHED
from onnxtrain.errors import OnnxTrainError

if TYPE_CHECKING:
    import torch

    from onnxtrain.distributed.groups import Groups

T = TypeVar("T")


def is_started() -> bool:
    """Whether this process was started as one of several."""
    return all(name in os.environ for name in LAUNCHED) and os.environ["WORLD_SIZE"] != "1"


def told_rank() -> int:
    """The number of this process, as its environment tells it; 0 if it is alone."""
    return int(os.environ["RANK"]) if is_started() else 0


class Ranks:
    """The processes of a run, all of which call the same methods in the same order.

    Args:
        groups: How they reach each other; None for a process that is alone.

    Attributes:
        rank: The number of this process.
        size: How many there are.
    """

    def __init__(self, groups: Groups | None = None) -> None:
        self.groups = groups
        self.rank = 0 if groups is None else groups.rank
        self.size = 1 if groups is None else groups.world_size

    @property
    def first(self) -> bool:
        """Whether this process prints and writes files."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in their order; values are as JSON can hold them."""
        if self.groups is None:
            return [value]
        import torch

        text = json.dumps(value).encode()
        sizes = self._rows(torch.tensor([len(text)])).reshape(-1).tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        rows = self._rows(padded)
        pairs = zip(rows, sizes, strict=True)
        return [json.loads(bytes(row[:size].tolist())) for row, size in pairs]

    def _rows(self, own: torch.Tensor) -> torch.Tensor:
        assert self.groups is not None
        rows = own.new_zeros(self.size, len(own))
        rows[self.rank] = own
        self.groups.all_gather(rows.view(-1), 0)
        return rows

    def highest(self, number: int) -> int:
        """The highest of the processes' numbers."""
        if self.groups is None:
            return number
        import torch

        return int(self._rows(torch.tensor([number])).max())

    def together(self, work: Callable[[], T]) -> T:
        """What ``work`` gives, if it succeeds in every process.

        Raises:
            OnnxTrainError: in the first process, if it failed in one.
            typer.Exit: in all others then.
        """
        result, error = None, None
        try:
            result = work()
        except OnnxTrainError as caught:
            if self.size == 1:
                raise
            error = caught
        told = self.gather(None if error is None else str(error))
        failed = [rank for rank, text in enumerate(told) if text is not None]
        if not failed:
            return result  # type: ignore[return-value]
        if not self.first:
            raise typer.Exit(1)
        if error is not None:
            raise error
        raise OnnxTrainError(f"process {failed[0]} of {self.size} failed: {told[failed[0]]}")


@contextlib.contextmanager
def connected(device: str | None) -> Iterator[tuple[Ranks, str | None]]:
    """With: the processes of this run, and the device of this one.

    Raises:
        OnnxTrainError: if they cannot reach each other, or one is gone before the end.
    """
    if not is_started():
        yield Ranks(), device
        return
    groups = _groups(device)
    try:
        yield Ranks(groups), str(groups.device)
    except (ConnectionError, TimeoutError) as error:
        raise OnnxTrainError(
            f"another process of this run is gone or silent: {error}\n"
            "  what ended it is in its own message; the same command with --resume goes on from "
            "the last checkpoint, if there is one (--checkpoint-every N writes one every N updates)"
        ) from error
    except (typer.Exit, OnnxTrainError):
        groups.close()  # an end that all processes come to, each by itself
        raise
    groups.close()


def _groups(device: str | None) -> Any:
    import torch

    from onnxtrain.distributed.torch_groups import connect

    kind = torch.device(checked_device(device)).type
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device is not None and ":" in device:
        raise OnnxTrainError(
            f"--device {device} would be the same for every process\n"
            f"  give  --device {kind}; each process takes one of its own"
        )
    if kind == "cuda" and local >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise OnnxTrainError(
            f"process {local} of this machine has no GPU, there are {count}\n"
            f"  start {count} on each machine, or give --device cpu"
        )
    try:
        return connect(kind)
    except (RuntimeError, OSError, ValueError) as error:
        raise OnnxTrainError(
            f"the processes of this run cannot reach each other: {str(error).splitlines()[0]}\n"
            "  start them with  onnxtrain fit ... --processes N  on one machine, or by torchrun"
        ) from error
