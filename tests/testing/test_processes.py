"""Small worlds: what they return, and how failures are told."""

import os
import time
from typing import Any

import pytest
import torch.distributed

from onnxtrain.distributed.groups import Groups
from onnxtrain.distributed.layout import Mesh
from onnxtrain.testing.processes import WorldError, attempt_world, run_world

pytestmark = pytest.mark.multi


def place(groups: Groups, *args: Any) -> tuple[Any, ...]:
    return groups.rank, groups.world_size, groups.mesh.pipeline_stage_size, groups.timeout, *args


def test_each_rank_returns_something() -> None:
    found = run_world(2, place, "x", 3, mesh=Mesh(2, 1, 1, 2), timeout=7.0)
    assert found == [(0, 2, 2, 7.0, "x", 3), (1, 2, 2, 7.0, "x", 3)]


def many(groups: Groups) -> list[torch.Tensor]:
    return [torch.full((2,), float(groups.rank)) for _ in range(64)]


def test_tensors_outlive_the_processes_that_made_them() -> None:
    found = run_world(2, many)
    assert [{t[0].item() for t in tensors} for tensors in found] == [{0.0}, {1.0}]


def misfortune(groups: Groups) -> int:
    torch.distributed.barrier()  # nobody falls before all have met
    time.sleep(1)
    if groups.rank == 0:
        raise KeyError("lost")
    if groups.rank == 1:
        os._exit(3)
    if groups.rank == 2:
        time.sleep(60)
    return groups.rank


def test_failures_are_told_by_rank() -> None:
    results = attempt_world(4, misfortune, deadline=8.0)
    assert [fine for fine, _ in results] == [False, False, False, True]
    assert "KeyError: 'lost'" in results[0][1]
    assert [text for _, text in results[1:]] == ["died", "did not end in time", 3]


def test_a_failure_is_an_error() -> None:
    with pytest.raises(WorldError, match=r"(?s)rank 0: .*KeyError: 'lost'.*rank 1: died"):
        run_world(2, misfortune)
