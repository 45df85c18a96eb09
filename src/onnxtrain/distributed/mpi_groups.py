"""Process groups over MPI, through mpi4py: for clusters whose launcher is ``mpiexec``."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from onnxtrain.distributed.groups import TIMEOUT, Groups
from onnxtrain.distributed.layout import Mesh
from onnxtrain.errors import OptionError

_EAGER_POLLS = 1000
_POLL = 1e-4


class MpiGroups(Groups):
    """Groups over the processes that ``mpiexec`` started; tensors on a GPU go through the host.

    Args:
        mesh: Which ranks form which groups; None for data parallelism over all of them.
        timeout: Seconds that a transfer may take.

    Raises:
        ModuleNotFoundError: if mpi4py is not installed (the extra ``mpi``).
        OptionError: if the mesh does not have as many ranks as MPI's world.
    """

    def __init__(self, mesh: Mesh | None = None, timeout: float = TIMEOUT) -> None:
        from mpi4py import MPI  # starting MPI is a side effect of this import

        self._mpi = MPI
        self._world = MPI.COMM_WORLD.Dup()
        size = self._world.Get_size()
        mesh = mesh or Mesh(size, size, local_size=self._local_size(size))
        if mesh.world_size != size:
            raise OptionError(f"the mesh has {mesh.world_size} ranks, MPI's world {size}")
        super().__init__(mesh, self._world.Get_rank(), timeout)
        self._groups: dict[tuple[int, ...], Any] = {}
        for ranks in mesh.all_groups():
            self._add(ranks, self.rank in ranks)

    def _local_size(self, size: int) -> int | None:
        """Processes on this machine, if the world is made of equal machines."""
        local = self._world.Split_type(self._mpi.COMM_TYPE_SHARED)
        sizes = set(self._world.allgather(local.Get_size()))
        local.Free()
        return sizes.pop() if len(sizes) == 1 else None

    def _add(self, ranks: tuple[int, ...], member: bool) -> None:
        """Make a communicator; all processes do, whether they are members or not."""
        color = 0 if member else self._mpi.UNDEFINED
        made = self._world.Split(color, self.rank)
        if member:
            self._groups[ranks] = made

    def all_reduce_block(self, tensor: Tensor, width: int) -> None:
        """tensor = its sum over an aligned block of ranks; the first call makes the blocks."""
        first = self.rank // width * width
        ranks = tuple(range(first, first + width))
        if ranks not in self._groups:
            self._groups[ranks] = self._world.Split(first, self.rank)
        super().all_reduce_block(tensor, width)

    def _sum(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        host = _on_host(tensor)
        request = self._groups[ranks].Iallreduce(self._mpi.IN_PLACE, host.numpy())
        self._finish(request, f"add up over ranks {list(ranks)}")
        _bring_back(host, tensor)

    def _gather(self, flat: Tensor, ranks: tuple[int, ...]) -> None:
        host = _on_host(flat)
        shares = host.view(torch.uint8).numpy()
        request = self._groups[ranks].Iallgather(self._mpi.IN_PLACE, shares)
        self._finish(request, f"gather from ranks {list(ranks)}")
        _bring_back(host, flat)

    def exchange(self, mine: Tensor, theirs: Tensor, peer: int) -> None:
        """theirs = what the peer gives, while it gets mine."""
        what = f"exchange with rank {peer}"
        requests = [
            self._world.Irecv(theirs.view(torch.uint8).numpy(), peer),
            self._world.Isend(mine.view(torch.uint8).numpy(), peer),
        ]
        for request in requests:
            self._finish(request, what)

    def send(self, tensor: Tensor, peer: int, tag: int) -> None:
        """Give a tensor to the peer, and return when it is on its way."""
        data = _on_host(tensor).view(torch.uint8).numpy()
        request = self._world.Isend(data, peer, tag)
        self._finish(request, f"send to rank {peer} (tag {tag})", cancel=True)

    def recv(self, tensor: Tensor, peer: int, tag: int) -> None:
        """tensor = what the peer gives."""
        host = _on_host(tensor)
        request = self._world.Irecv(host.view(torch.uint8).numpy(), peer, tag)
        self._finish(request, f"receive from rank {peer} (tag {tag})", cancel=True)
        _bring_back(host, tensor)

    def _finish(self, request: Any, what: str, cancel: bool = False) -> None:
        """Wait for a transfer, first eagerly, then politely."""
        deadline = time.monotonic() + self.timeout
        polls = 0
        try:
            while not request.Test():
                polls += 1
                if time.monotonic() > deadline:
                    if cancel:
                        request.Cancel()
                    raise TimeoutError(f"could not {what} within {self.timeout:g} seconds")
                time.sleep(0 if polls < _EAGER_POLLS else _POLL)
        except self._mpi.Exception as error:
            raise ConnectionError(f"could not {what}: {error}") from error

    def close(self) -> None:
        """Give the communicators back."""
        while self._groups:
            self._groups.popitem()[1].Free()
        self._world.Free()


def _on_host(tensor: Tensor) -> Tensor:
    """The tensor itself if it is on the host, else a copy in pinned memory there."""
    if tensor.device.type == "cpu":
        return tensor
    pinned = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return pinned.copy_(tensor)


def _bring_back(host: Tensor, tensor: Tensor) -> None:
    if host is not tensor:
        tensor.copy_(host)
