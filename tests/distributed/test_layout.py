"""Which ranks form which groups, and who owns which tensor."""

import itertools
import re

import pytest

from onnxtrain.distributed.layout import GroupType, Mesh, partition
from onnxtrain.errors import OptionError

GLOBAL, DATA, LOCAL, CROSS, HORIZONTAL, PIPELINE = GroupType


@pytest.mark.parametrize(
    ("mesh", "rank", "kind", "ranks"),
    [
        (Mesh(24, 2, 3, 4), 17, DATA, (14, 17)),
        (Mesh(24, 2, 3, 4), 17, HORIZONTAL, (15, 16, 17)),
        (Mesh(24, 2, 3, 4), 17, PIPELINE, (5, 11, 17, 23)),
        (Mesh(4, 2, 2), 1, DATA, (1, 3)),
        (Mesh(4, 2, 2), 1, HORIZONTAL, (0, 1)),
        (Mesh(4, 2, 2), 1, PIPELINE, (1,)),
        (Mesh(24, 3, 4, 2), 11, DATA, (3, 7, 11)),
        (Mesh(24, 3, 4, 2), 11, HORIZONTAL, (8, 9, 10, 11)),
        (Mesh(24, 3, 4, 2), 11, PIPELINE, (11, 23)),
        (Mesh(8, 8), 5, GLOBAL, tuple(range(8))),
        (Mesh(8, 8, local_size=4), 5, LOCAL, (4, 5, 6, 7)),
        (Mesh(8, 8, local_size=4), 5, CROSS, (1, 5)),
        (Mesh(8, 4, 2, local_size=4), 5, LOCAL, (5, 7)),
        (Mesh(8, 4, 2, local_size=4), 5, CROSS, (1, 5)),
        (Mesh(8, 8), 5, CROSS, (5,)),
    ],
)
def test_groups(mesh: Mesh, rank: int, kind: GroupType, ranks: tuple[int, ...]) -> None:
    assert mesh.ranks(kind, rank) == ranks


MESHES = [
    Mesh(d * h * p, d, h, p, local_size=d * h * p // nodes)
    for d, h, p in itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 2, 4))
    for nodes in (1, d * h * p if d * h * p % 2 else 2)
]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("kind", GroupType)
def test_each_kind_divides_the_world(mesh: Mesh, kind: GroupType) -> None:
    groups = {mesh.ranks(kind, rank) for rank in range(mesh.world_size)}
    assert sorted(rank for ranks in groups for rank in ranks) == list(range(mesh.world_size))
    assert all(rank in mesh.ranks(kind, rank) for rank in range(mesh.world_size))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_group_is_listed_once(mesh: Mesh) -> None:
    listed = mesh.all_groups()
    wanted = {mesh.ranks(kind, rank) for kind in GroupType for rank in range(mesh.world_size)}
    assert len(listed) == len(set(listed))
    assert set(listed) == {ranks for ranks in wanted if len(ranks) > 1}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0,), "world_size(0) must be positive"),
        ((8, 0), "data_parallel_size(0) MUST range from 0 ~ world_size(8)"),
        ((8, 16), "data_parallel_size(16) MUST range from 0 ~ world_size(8)"),
        ((8, 1, 9), "horizontal_parallel_size(9) MUST range from 0 ~ world_size(8)"),
        ((64, 8, 5), "world_size(64) is not divisible by horizontal_parallel_size(5)"),
        ((64, 5, 5), "world_size(64) is not divisible by horizontal_parallel_size(5)"),
        ((64, 5, 8), "world_size(64) is not divisible by data_parallel_size(5)"),
        (
            (64, 8, 4),
            "data_parallel_size(8) * horizontal_parallel_size(4) * pipeline_stage_size(1) "
            "!= world_size(64)",
        ),
        ((8, 8, 1, 1, 3), "world_size(8) is not divisible by local_size(3)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)) as refused:
        Mesh(*sizes)
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("value", [-1, 6])
def test_an_unknown_group_type_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=f"group_type {value} is unknown"):
        GroupType.of(value)


@pytest.mark.parametrize(
    ("sizes", "ranks", "padded", "owners"),
    [
        ([50, 14, 16], 2, 128, [0, 0, 1]),
        ([64], 2, 128, [0]),
        ([64, 0], 2, 128, [0, 1]),
        ([1], 1, 32, [0]),
        ([0, 0], 4, 128, [0, 0]),
        ([32, 32, 32, 31], 4, 128, [0, 1, 2, 3]),
    ],
)
def test_shares(sizes: list[int], ranks: int, padded: int, owners: list[int]) -> None:
    parts = partition(sizes, ranks)
    assert (parts.padded, parts.share, parts.owners()) == (padded, padded // ranks, owners)


def test_a_tensor_of_two_owners_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tensor 1 \(elements 50 to 80\).* rank 0 at 64"):
        partition([50, 30], 2).owners()


def test_there_must_be_something_to_divide() -> None:
    with pytest.raises(ValueError, match="there is no tensor"):
        partition([], 2)
