"""Samplers that give all processes samples of about the same size in every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, Sampler

from onnxtrain.errors import OptionError

BatchFunction = Callable[[list[int]], list[list[int]]]


class LoadBalancingDistributedSampler(Sampler[int]):
    """Sorts samples by size and deals them out, so that each round has samples of similar size.

    Args:
        dataset: The samples; it must have a length.
        complexity_fn: Size of a sample, an integer.
        world_size: Number of processes; that of the default group unless given.
        rank: This process.
        shuffle: Whether rounds (or groups) come in another order in every epoch.
        group_size: Sort within groups of so many neighbours instead of all samples together.
        seed: Seed of the order; the same in all processes.
        drop_last: Whether samples left over are dropped, instead of filled up from the start.
        random_level: From 0 (exact order) to 1 (sizes are blurred over their whole range).

    Raises:
        OptionError: if rank, random level or group size are out of range.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        complexity_fn: Callable[..., int],
        world_size: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        group_size: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        random_level: float = 0,
    ) -> None:
        self.world_size = dist.get_world_size() if world_size is None else world_size
        self.rank = dist.get_rank() if rank is None else rank
        if not 0 <= self.rank < self.world_size:
            last = self.world_size - 1
            raise OptionError(f"Invalid rank {rank}, rank should be in the interval [0, {last}]")
        if not 0 <= random_level <= 1:
            raise OptionError(
                f"Invalid random level {random_level}, should be in the range [0.0, 1.0]"
            )
        if group_size is not None and group_size < 1:
            raise OptionError(f"group_size is {group_size}, must be positive")
        self.dataset = dataset
        self.complexity_fn = complexity_fn
        self.shuffle = shuffle
        self.group_size = group_size
        self.seed = seed
        self.drop_last = drop_last
        self.random_level = random_level
        self.epoch = 0
        count = len(dataset)  # type: ignore[arg-type]
        rounds = count / self.world_size
        self.num_samples = math.floor(rounds) if drop_last else math.ceil(rounds)
        self.total_size = self.num_samples * self.world_size
        self._sizes: list[int] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch, with another order."""
        self.epoch = epoch

    def __len__(self) -> int:
        """How many samples each process gets."""
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        """Samples of this process."""
        return iter(self.shard(self.rank))

    def shard(self, rank: int) -> list[int]:
        """Samples of one process in this epoch."""
        return self._order()[rank :: self.world_size]

    def _order(self) -> list[int]:
        """Samples of all processes: those of one round stand together."""
        generator = torch.Generator()
        generator.manual_seed(self.seed + self.epoch)
        sizes = self._blurred(generator)
        if self.group_size is None:
            filled = self._filled(_sorted(range(len(sizes)), sizes, self._known_sizes()))
            blocks = _blocks(filled, self.world_size)
            return [i for block in self._shuffled(blocks, generator) for i in block]
        groups = _blocks(list(range(len(sizes))), self.group_size)
        groups = [_sorted(group, sizes, self._known_sizes()) for group in groups]
        return self._filled([i for group in self._shuffled(groups, generator) for i in group])

    def _known_sizes(self) -> list[int]:
        """Sizes of all samples, computed once."""
        if self._sizes is None:
            count = len(self.dataset)  # type: ignore[arg-type]
            self._sizes = [self.complexity_fn(self.dataset[i]) for i in range(count)]
        return self._sizes

    def _blurred(self, generator: torch.Generator) -> list[int]:
        """Sizes, with random numbers up to a share of their range added."""
        sizes = self._known_sizes()
        if not sizes or not self.random_level:
            return sizes
        limit = int((max(sizes) - min(sizes)) * self.random_level + 1)
        noise = torch.randint(limit, (len(sizes),), generator=generator).tolist()
        return [size + extra for size, extra in zip(sizes, noise, strict=True)]

    def _shuffled(self, blocks: list[list[int]], generator: torch.Generator) -> list[list[int]]:
        if not self.shuffle:
            return blocks
        return [blocks[i] for i in torch.randperm(len(blocks), generator=generator).tolist()]

    def _filled(self, order: list[int]) -> list[int]:
        """As many samples as all processes take together: cut off, or again from the start."""
        if not order:
            return order
        return [order[i % len(order)] for i in range(self.total_size)]


class LoadBalancingDistributedBatchSampler(Sampler[list[int]]):
    """Batches of the samples of a sampler; all processes get the same number of batches.

    Args:
        sampler: The samples.
        batch_fn: Splits a list of samples into batches; it may make them of different sizes.
        drop_last: Whether processes with more batches than others drop them, instead of the
            others repeating theirs from the start.
    """

    def __init__(
        self,
        sampler: LoadBalancingDistributedSampler,
        batch_fn: BatchFunction,
        drop_last: bool = False,
    ) -> None:
        if not isinstance(sampler, LoadBalancingDistributedSampler):
            raise OptionError(
                f"sampler must be a LoadBalancingDistributedSampler, not {type(sampler).__name__}"
            )
        self.sampler = sampler
        self.batch_fn = batch_fn
        self.drop_last = drop_last
        self._batches = self._of_this_process()

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch, with another order."""
        self.sampler.set_epoch(epoch)
        self._batches = self._of_this_process()

    def __len__(self) -> int:
        """How many batches each process gets."""
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        """Batches of this process."""
        return iter(self._batches)

    def _of_this_process(self) -> list[list[int]]:
        ranks = range(self.sampler.world_size)
        shards = [list(self.batch_fn(self.sampler.shard(rank))) for rank in ranks]
        counts = [len(batches) for batches in shards]
        count = min(counts) if self.drop_last else max(counts)
        own = shards[self.sampler.rank]
        return [own[i % len(own)] for i in range(count)] if own else []


def _sorted(items: Any, sizes: list[int], ties: list[int]) -> list[int]:
    """Samples by size; equally blurred ones by their true size."""
    return sorted(items, key=lambda i: (sizes[i], ties[i]))


def _blocks(items: list[int], size: int) -> list[list[int]]:
    return [items[i : i + size] for i in range(0, len(items), size)]
