"""Which ranks form which groups, and which rank owns which tensor; plain numbers, no torch.

Ranks are laid out with tensor parallelism fastest, then data, then pipeline::

    rank = x + y·H + z·H·D    with x < H, y < D, z < P
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Sequence

from onnxtrain.errors import OptionError

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables by which ``torchrun`` tells the processes that it starts about each other."""
ALIGNMENT = 32
"""Elements by which the share of each rank of a partition is rounded up."""


class GroupType(enum.IntEnum):
    """Kinds of groups; the value is what ``group_type`` attributes hold."""

    GLOBAL = 0
    DATA = 1
    NODE_LOCAL_DATA = 2
    CROSS_NODE_DATA = 3
    HORIZONTAL = 4
    PIPELINE = 5

    @classmethod
    def of(cls, value: int) -> GroupType:
        """The kind with a value.

        Raises:
            ValueError: if there is none.
        """
        try:
            return cls(value)
        except ValueError:
            known = ", ".join(f"{kind.value} ({kind.name.lower()})" for kind in cls)
            raise ValueError(f"group_type {value} is unknown\n  have  {known}") from None


@dataclasses.dataclass(frozen=True)
class Mesh:
    """The processes of a run.

    Attributes:
        world_size: How many there are.
        data_parallel_size: Replicas of the model (D).
        horizontal_parallel_size: Processes that share each layer (H).
        pipeline_stage_size: Stages that the layers are divided into (P).
        local_size: Processes on each machine, numbered without gaps; None for all on one.

    Raises:
        OptionError: if the sizes do not multiply to the world's.
    """

    world_size: int = 1
    data_parallel_size: int = 1
    horizontal_parallel_size: int = 1
    pipeline_stage_size: int = 1
    local_size: int | None = None

    def __post_init__(self) -> None:
        world, data, horizontal = (
            self.world_size,
            self.data_parallel_size,
            self.horizontal_parallel_size,
        )
        if world <= 0:
            raise OptionError(f"world_size({world}) must be positive")
        sizes = {"horizontal_parallel_size": horizontal, "data_parallel_size": data}
        for name, size in sizes.items():
            if not 0 < size <= world:
                raise OptionError(f"{name}({size}) MUST range from 0 ~ world_size({world})")
        for name, size in sizes.items():
            if world % size:
                raise OptionError(f"world_size({world}) is not divisible by {name}({size})")
        if data * horizontal * self.pipeline_stage_size != world:
            raise OptionError(
                f"data_parallel_size({data}) * horizontal_parallel_size({horizontal}) * "
                f"pipeline_stage_size({self.pipeline_stage_size}) != world_size({world})"
            )
        if self.node_size <= 0 or world % self.node_size:
            raise OptionError(
                f"world_size({world}) is not divisible by local_size({self.node_size})"
            )

    @property
    def node_size(self) -> int:
        """Processes on each machine."""
        return self.world_size if self.local_size is None else self.local_size

    def stage(self, rank: int) -> int:
        """The pipeline stage of a rank."""
        return rank // (self.data_parallel_size * self.horizontal_parallel_size)

    def ranks(self, kind: GroupType, rank: int) -> tuple[int, ...]:
        """World ranks of the group of a kind that a rank belongs to, in the group's order."""
        d, h, node = self.data_parallel_size, self.horizontal_parallel_size, self.node_size
        x, y, z = rank % h, rank // h % d, self.stage(rank)
        data = tuple(x + k * h + z * h * d for k in range(d))
        if kind is GroupType.DATA:
            return data
        if kind is GroupType.NODE_LOCAL_DATA:
            return tuple(other for other in data if other // node == rank // node)
        if kind is GroupType.CROSS_NODE_DATA:
            return tuple(range(rank % node, self.world_size, node))
        if kind is GroupType.HORIZONTAL:
            return tuple(y * h + z * h * d + k for k in range(h))
        if kind is GroupType.PIPELINE:
            return tuple(x + y * h + k * h * d for k in range(self.pipeline_stage_size))
        return tuple(range(self.world_size))

    def all_groups(self) -> list[tuple[int, ...]]:
        """Every group of more than one rank, each once, in the same order on every rank."""
        groups = dict.fromkeys(
            self.ranks(kind, rank) for kind in GroupType for rank in range(self.world_size)
        )
        return [ranks for ranks in groups if len(ranks) > 1]


@dataclasses.dataclass(frozen=True)
class Partition:
    """Tensors laid end to end and divided into equal, padded shares.

    Attributes:
        sizes: Elements of each tensor.
        ranks: How many ranks own a share.
    """

    sizes: tuple[int, ...]
    ranks: int

    @property
    def padded(self) -> int:
        """Elements of all shares; always more than the tensors have."""
        total, align = sum(self.sizes), ALIGNMENT * self.ranks
        return total + align - total % align

    @property
    def share(self) -> int:
        """Elements that each rank owns."""
        return self.padded // self.ranks

    @property
    def offsets(self) -> list[int]:
        """Where each tensor begins."""
        return [0, *itertools.accumulate(self.sizes)][: len(self.sizes)]

    def owners(self) -> list[int]:
        """The rank that owns each tensor: the one in whose share it begins.

        Raises:
            ValueError: if a tensor does not end in the share in which it begins.
        """
        owners = []
        for index, (offset, size) in enumerate(zip(self.offsets, self.sizes, strict=True)):
            owner = offset // self.share
            if offset + size > (owner + 1) * self.share:
                raise ValueError(
                    "a single rank must be responsible for the entire tensor, but tensor "
                    f"{index} (elements {offset} to {offset + size}) crosses the end of the share "
                    f"of rank {owner} at {(owner + 1) * self.share}; divide it with View first"
                )
            owners.append(owner)
        return owners


def partition(sizes: Sequence[int], ranks: int) -> Partition:
    """The partition of tensors with these numbers of elements.

    Raises:
        ValueError: if there is no tensor.
    """
    if not sizes:
        raise ValueError("there is no tensor to divide among the ranks")
    return Partition(tuple(sizes), ranks)
