"""Process groups over torch.distributed: NCCL for tensors on a GPU, Gloo for those on the host."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from onnxtrain.distributed.groups import TIMEOUT, Groups
from onnxtrain.distributed.layout import LAUNCHED, Mesh
from onnxtrain.errors import OptionError

HOST_BACKEND = "gloo"
GPU_BACKEND = "cpu:gloo,cuda:nccl"
_POLL = 1e-4
_ALL_GATHER: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""By the names of newer releases of torch, which warn about the old ones."""


class TorchGroups(Groups):
    """Groups over the processes that torch.distributed already connects.

    Every process must make them at the same time and with the same mesh.

    Args:
        mesh: Which ranks form which groups; its size is that of torch.distributed's world.
        device: Where this process computes; a GPU gets NCCL beside Gloo.
        timeout: Seconds that a transfer may take.
        owner: Whether the world of torch.distributed ends with these groups.

    Raises:
        OptionError: if torch.distributed is not initialised, or its world has another size.
    """

    def __init__(
        self,
        mesh: Mesh,
        device: torch.device | str = "cpu",
        timeout: float = TIMEOUT,
        *,
        owner: bool = False,
    ) -> None:
        if not dist.is_initialized():
            raise OptionError(
                "torch.distributed is not initialised; call connect(), or init_process_group first"
            )
        if dist.get_world_size() != mesh.world_size:
            raise OptionError(
                f"the mesh has {mesh.world_size} ranks, torch.distributed {dist.get_world_size()}"
            )
        super().__init__(mesh, dist.get_rank(), timeout)
        self.device = torch.device(device)
        self._owner = owner
        self._backend = GPU_BACKEND if self.device.type == "cuda" else HOST_BACKEND
        self._groups: dict[tuple[int, ...], Any] = {}
        self._add([tuple(range(mesh.world_size)), *mesh.all_groups()])
        self._world = self._groups[tuple(range(mesh.world_size))]
        if self._backend == HOST_BACKEND:
            # a rank that has nothing to do must not leave while others are still connecting
            with _explained("meet all ranks", self.timeout):
                dist.barrier(group=self._world)

    def _add(self, groups: list[tuple[int, ...]]) -> None:
        """Make groups; all processes do, whether they are members or not."""
        limit = datetime.timedelta(seconds=self.timeout)
        for ranks in groups:
            if ranks not in self._groups:
                with _explained(f"make a group of ranks {list(ranks)}", self.timeout):
                    made = dist.new_group(list(ranks), timeout=limit, backend=self._backend)
                self._groups[ranks] = made

    def all_reduce_block(self, tensor: Tensor, width: int) -> None:
        """tensor = its sum over an aligned block of ranks; the first call makes the blocks."""
        self._add([tuple(range(n, n + width)) for n in range(0, self.world_size, width)])
        super().all_reduce_block(tensor, width)

    def _sum(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        with _explained(f"add up over ranks {list(ranks)}", self.timeout):
            dist.all_reduce(tensor, group=self._groups[ranks])

    def _gather(self, flat: Tensor, ranks: tuple[int, ...]) -> None:
        share = flat.numel() // len(ranks)
        own = flat.narrow(0, ranks.index(self.rank) * share, share).clone()
        with _explained(f"gather from ranks {list(ranks)}", self.timeout):
            _ALL_GATHER(flat, own, group=self._groups[ranks])

    def reduce_scatter(self, flat: Tensor, group_type: int) -> None:
        """This rank's share of flat = its sum over the group."""
        ranks = self.ranks(group_type)
        if not flat.is_cuda or len(ranks) == 1:
            super().reduce_scatter(flat, group_type)
            return
        share = flat.numel() // len(ranks)
        own = flat.narrow(0, ranks.index(self.rank) * share, share)
        with _explained(f"add up over ranks {list(ranks)}", self.timeout):
            _REDUCE_SCATTER(own, flat, group=self._groups[ranks])

    def exchange(self, mine: Tensor, theirs: Tensor, peer: int) -> None:
        """theirs = what the peer gives, while it gets mine."""
        with _explained(f"exchange with rank {peer}", self.timeout):
            works = []
            if theirs.numel():
                works.append(dist.irecv(theirs, peer, group=self._world))
            if mine.numel():
                works.append(dist.isend(mine, peer, group=self._world))
            for work in works:
                self._finish(work, mine)

    def send(self, tensor: Tensor, peer: int, tag: int) -> None:
        """Give a tensor to the peer, and return when it is on its way."""
        with _explained(f"send to rank {peer} (tag {tag})", self.timeout):
            self._finish(dist.isend(tensor, peer, group=self._world, tag=tag), tensor)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> None:
        """tensor = what the peer gives."""
        with _explained(f"receive from rank {peer} (tag {tag})", self.timeout):
            self._finish(dist.irecv(tensor, peer, group=self._world, tag=tag), tensor)

    def _finish(self, work: Any, tensor: Tensor) -> None:
        """Wait on the host for a transfer; NCCL's own wait would only order streams."""
        if not tensor.is_cuda:
            work.wait(datetime.timedelta(seconds=self.timeout))
            return
        deadline = time.monotonic() + self.timeout
        while not work.is_completed():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(_POLL)
        work.wait()

    def close(self) -> None:
        """Give the groups back.

        A world that nobody ends has threads left when Python ends, which may abort the process.
        Nothing here refers to a group afterwards, since its threads end with it.
        """
        self._world = None
        while self._groups:
            _, group = self._groups.popitem()
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
        if self._owner and dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _explained(what: str, timeout: float) -> Iterator[None]:
    """Failures of torch.distributed as TimeoutError or ConnectionError that say what was tried."""
    try:
        yield
    except TimeoutError as error:
        raise TimeoutError(f"could not {what} within {timeout:g} seconds") from error
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        if "timed out" in reason.lower() or "timeout" in reason.lower():
            raise TimeoutError(f"could not {what} within {timeout:g} seconds: {reason}") from error
        raise ConnectionError(f"could not {what}: {reason}") from error


def connect(
    device: torch.device | str = "cpu",
    *,
    data_parallel_size: int | None = None,
    horizontal_parallel_size: int = 1,
    pipeline_stage_size: int = 1,
    timeout: float = TIMEOUT,
) -> TorchGroups:
    """Groups of the processes that ``torchrun`` started (or anything that sets its variables).

    Args:
        device: Where this process computes; ``cuda`` is the GPU with the number ``LOCAL_RANK``.
        data_parallel_size: Replicas of the model; None for as many as there are processes for.
        horizontal_parallel_size: Processes that share each layer.
        pipeline_stage_size: Stages that the layers are divided into.
        timeout: Seconds that a transfer may take.

    Raises:
        OptionError: if this process was not started as one of several, or the sizes do not fit.
    """
    device = torch.device(device)
    if device.type == "cuda":
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        device = torch.device("cuda", local_rank if device.index is None else device.index)
        torch.cuda.set_device(device)
    owner = not dist.is_initialized()
    if owner:
        _join(device, timeout)
    try:
        world = dist.get_world_size()
        if data_parallel_size is None:
            data_parallel_size = world // max(1, horizontal_parallel_size * pipeline_stage_size)
        local = os.environ.get("LOCAL_WORLD_SIZE")
        mesh = Mesh(
            world,
            data_parallel_size,
            horizontal_parallel_size,
            pipeline_stage_size,
            None if local is None else int(local),
        )
        return TorchGroups(mesh, device, timeout, owner=owner)
    except OptionError:
        if owner:
            dist.destroy_process_group()
        raise


def _join(device: torch.device, timeout: float) -> None:
    """Enter the world that the launcher's variables tell of."""
    if missing := [name for name in LAUNCHED if name not in os.environ]:
        raise OptionError(
            f"there are no processes to connect: {', '.join(missing)} is not set\n"
            "  start the program with torchrun, or call torch.distributed.init_process_group first"
        )
    backend = GPU_BACKEND if device.type == "cuda" else HOST_BACKEND
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
