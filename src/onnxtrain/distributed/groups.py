"""Groups: the process groups of a run, which kernels ask for with ``needs=["groups"]``.

``TorchGroups`` runs over torch.distributed (NCCL on GPUs, Gloo on CPUs), ``MpiGroups`` over MPI.
A session gets them through ``SessionOptions.groups``; without them a run is one process, alone.
"""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from onnxtrain.distributed.layout import GroupType, Mesh
from onnxtrain.errors import OptionError

TIMEOUT = 1800.0
"""Seconds after which a silent peer is an error, unless told otherwise."""


class Groups(abc.ABC):
    """Process groups laid out by a mesh, and the transfers that operators are made of.

    Every transfer works in place on contiguous tensors and ends within the time-out: with its
    result, with ``TimeoutError`` if a peer is silent, or with ``ConnectionError`` if it is gone.
    What an operator asks for and cannot have is a ``ValueError``, to which its node is added.

    Attributes:
        mesh: Which ranks form which groups.
        rank: The rank of this process in the world.
        timeout: Seconds that a transfer may take.
        device: Where point-to-point payloads travel from and to.

    Raises:
        OptionError: if the rank is not one of the mesh's, or the time-out is not positive.
    """

    device = torch.device("cpu")

    def __init__(self, mesh: Mesh, rank: int, timeout: float = TIMEOUT) -> None:
        if not 0 <= rank < mesh.world_size:
            raise OptionError(f"rank {rank} is not in a world of {mesh.world_size}")
        if timeout <= 0:
            raise OptionError(f"a time-out of {timeout} seconds is not positive")
        self.mesh = mesh
        self.rank = rank
        self.timeout = timeout

    @property
    def world_size(self) -> int:
        """How many processes the run has."""
        return self.mesh.world_size

    def ranks(self, group_type: int) -> tuple[int, ...]:
        """World ranks of this process's group of a kind."""
        return self.mesh.ranks(GroupType.of(group_type), self.rank)

    def all_reduce(self, tensor: Tensor, group_type: int) -> None:
        """tensor = its sum over the group."""
        self._sum_widened(tensor, self.ranks(group_type))

    def all_reduce_block(self, tensor: Tensor, width: int) -> None:
        """tensor = its sum over ranks k·width to (k+1)·width - 1, one of which is this one's."""
        first = self.rank // width * width
        self._sum_widened(tensor, tuple(range(first, first + width)))

    def _sum_widened(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        """The sum; without NCCL halves are added in float32 and rounded once."""
        if len(ranks) == 1:
            return
        on_gpu = tensor.is_cuda and self.device.type == "cuda"
        if on_gpu or tensor.dtype not in (torch.float16, torch.bfloat16):
            self._sum(tensor, ranks)
            return
        wide = tensor.to(torch.float32)
        self._sum(wide, ranks)
        tensor.copy_(wide)

    def all_gather(self, flat: Tensor, group_type: int) -> None:
        """Each rank has filled its own equal share of flat; now every share is filled."""
        ranks = self.ranks(group_type)
        if len(ranks) > 1:
            self._gather(flat, ranks)

    def reduce_scatter(self, flat: Tensor, group_type: int) -> None:
        """This rank's share of flat = its sum over the group; the others have no defined value."""
        self.all_reduce(flat, group_type)

    @abc.abstractmethod
    def _sum(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        """tensor = its sum over a group of at least two ranks."""

    @abc.abstractmethod
    def _gather(self, flat: Tensor, ranks: tuple[int, ...]) -> None:
        """Fill the shares of the others in a group of at least two ranks."""

    @abc.abstractmethod
    def exchange(self, mine: Tensor, theirs: Tensor, peer: int) -> None:
        """theirs = what the peer gives, while it gets mine; both are on the host."""

    @abc.abstractmethod
    def send(self, tensor: Tensor, peer: int, tag: int) -> None:
        """Give a tensor to the peer's ``recv`` with the same tag."""

    @abc.abstractmethod
    def recv(self, tensor: Tensor, peer: int, tag: int) -> None:
        """tensor = what the peer's ``send`` with the same tag gives."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give the groups back; nothing can be transferred afterwards."""

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Alone(Groups):
    """A run of one process: sums and gathers are identities, and there is no peer."""

    def __init__(self) -> None:
        super().__init__(Mesh(), rank=0)

    def _sum(self, tensor: Tensor, ranks: tuple[int, ...]) -> None:
        raise AssertionError("a world of one has no group of two")

    def _gather(self, flat: Tensor, ranks: tuple[int, ...]) -> None:
        raise AssertionError("a world of one has no group of two")

    def exchange(self, mine: Tensor, theirs: Tensor, peer: int) -> None:
        """There is no peer."""
        raise ValueError(f"there is no rank {peer} in a world of one")

    def send(self, tensor: Tensor, peer: int, tag: int) -> None:
        """There is no peer."""
        raise ValueError(f"there is no rank {peer} in a world of one")

    recv = send

    def close(self) -> None:
        """There is nothing to give back."""


ALONE = Alone()


def present(groups: Groups | None) -> Groups:
    """The groups of a session, or those of a process that is alone.

    Raises:
        ValueError: if the session has none although torch.distributed runs several processes.
    """
    if groups is not None:
        return groups
    connected = torch.distributed.is_available() and torch.distributed.is_initialized()
    size = torch.distributed.get_world_size() if connected else 1
    if size > 1:
        raise ValueError(
            f"the session has no process groups, but torch.distributed runs {size} processes; "
            "set SessionOptions.groups, for example to TorchGroups(Mesh(...))"
        )
    return ALONE
