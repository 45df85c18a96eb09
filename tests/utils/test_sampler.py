from __future__ import annotations

import pytest

from onnxtrain.errors import OptionError
from onnxtrain.utils.data import (
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
)

DATA = [5, 3, 9, 1, 7, 2, 8, 4, 6, 0, 10]


def sampler(rank: int = 0, epoch: int = 3, **options) -> LoadBalancingDistributedSampler:
    made = LoadBalancingDistributedSampler(DATA, lambda x: x, world_size=2, rank=rank, **options)
    made.set_epoch(epoch)
    return made


def sizes(**options) -> list[list[int]]:
    """What both processes get, as sizes."""
    return [[DATA[i] for i in sampler(rank, **options)] for rank in (0, 1)]


# What onnxruntime-training 1.19.2 gives with world_size 2, seed 0 and epoch 3.
REFERENCE = [
    ({"shuffle": False}, [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 0]]),
    ({"shuffle": False, "drop_last": True}, [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]),
    ({"shuffle": False, "random_level": 0.5}, [[0, 1, 6, 4, 9, 10], [2, 3, 8, 5, 7, 0]]),
    ({"shuffle": False, "group_size": 4}, [[1, 5, 2, 7, 0, 10], [3, 9, 4, 8, 6, 1]]),
    ({}, [[8, 0, 6, 4, 2, 10], [9, 1, 7, 5, 3, 0]]),
    ({"drop_last": True}, [[2, 0, 6, 8, 4], [3, 1, 7, 9, 5]]),
    ({"random_level": 0.5}, [[4, 1, 0, 6, 10, 9], [5, 3, 2, 8, 0, 7]]),
    ({"group_size": 4}, [[2, 7, 1, 5, 0, 10], [4, 8, 3, 9, 6, 2]]),
    ({"group_size": 4, "drop_last": True}, [[2, 7, 1, 5, 0], [4, 8, 3, 9, 6]]),
    ({"group_size": 4, "random_level": 0.5}, [[1, 5, 0, 10, 8, 7], [3, 9, 6, 2, 4, 1]]),
]


@pytest.mark.parametrize(("options", "expected"), REFERENCE, ids=lambda v: str(v)[:40])
def test_samples_are_those_of_the_reference(options, expected):
    assert sizes(**options) == expected
    assert len(sampler(**options)) == len(expected[0])


def test_an_epoch_has_its_own_order():
    first, again, other = (sizes(epoch=epoch) for epoch in (1, 1, 2))
    assert first == again != other


def thirds(indices: list[int]) -> list[list[int]]:
    return [indices[i : i + 3] for i in range(0, len(indices), 3)]


def test_batches():
    batches = LoadBalancingDistributedBatchSampler(sampler(shuffle=False), thirds)
    assert len(batches) == 2
    assert [[DATA[i] for i in batch] for batch in batches] == [[0, 2, 4], [6, 8, 10]]
    shuffled = LoadBalancingDistributedBatchSampler(sampler(), thirds)
    before = list(shuffled)
    shuffled.set_epoch(8)
    assert list(shuffled) != before


def by_weight(indices: list[int]) -> list[list[int]]:
    """Batches of at most 11 in sum, so that processes get different numbers of them."""
    batches: list[list[int]] = []
    for i in indices:
        if batches and sum(DATA[j] for j in batches[-1]) + DATA[i] <= 11:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


@pytest.mark.parametrize(("drop_last", "count"), [(True, 3), (False, 4)])
def test_every_process_gets_the_same_number_of_batches(drop_last, count):
    own = [by_weight(list(sampler(rank, shuffle=False))) for rank in (0, 1)]
    assert [len(batches) for batches in own] == [4, 3] or [len(b) for b in own] == [3, 4]
    for rank in (0, 1):
        given = LoadBalancingDistributedBatchSampler(
            sampler(rank, shuffle=False), by_weight, drop_last
        )
        assert len(given) == len(list(given)) == count
        assert list(given) == [own[rank][i % len(own[rank])] for i in range(count)]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rank": 2}, r"Invalid rank 2, rank should be in the interval \[0, 1\]"),
        ({"random_level": 2.0}, "Invalid random level 2.0"),
        ({"group_size": 0}, "group_size is 0"),
    ],
)
def test_wrong_options(options, match):
    with pytest.raises(OptionError, match=match):
        sampler(**options)


def test_batches_need_a_sampler_that_knows_all_processes():
    with pytest.raises(OptionError, match="not list"):
        LoadBalancingDistributedBatchSampler([1, 2], thirds)
