"""Smallest cuts, against all cuts there are."""

from __future__ import annotations

import itertools
import random

import pytest

from onnxtrain.transforms.recompute.flow import Network

Edge = tuple[int, int, int | None]


def cut_of(vertices: int, edges: list[Edge]) -> set[int]:
    """From vertex 0 to vertex 1."""
    network = Network()
    for _ in range(vertices):
        network.vertex()
    for edge in edges:
        network.edge(*edge)
    return network.behind_cut(0, 1)


def weight(behind: set[int], edges: list[Edge]) -> float:
    crossing = [c for a, b, c in edges if a not in behind and b in behind]
    return sum(float("inf") if c is None else c for c in crossing)


def smallest(vertices: int, edges: list[Edge]) -> tuple[float, set[int]]:
    """The weight of the smallest cut, and the fewest vertices behind such a one."""
    others = range(2, vertices)
    sides = [
        {1, *chosen}
        for size in range(vertices - 1)
        for chosen in itertools.combinations(others, size)
    ]
    return min(((weight(side, edges), side) for side in sides), key=lambda pair: pair[0])


@pytest.mark.parametrize("seed", range(40))
def test_cuts_of_random_networks(seed: int) -> None:
    draw, least = random.Random(seed), float("inf")
    while least == float("inf"):
        vertices = draw.randint(3, 8)
        edges: list[Edge] = [
            (a, b, draw.choice([None, 0, 1, 2, 3, 5]))
            for a, b in itertools.permutations(range(vertices), 2)
            if b != 0 and a != 1 and (a, b) != (0, 1) and draw.random() < 0.5
        ]
        least, side = smallest(vertices, edges)
    found = cut_of(vertices, edges)
    assert 1 in found and 0 not in found
    assert weight(found, edges) == least
    assert found == side, "the nearest to the sink"


def test_of_equal_cuts_the_last_one_is_taken() -> None:
    chain: list[Edge] = [(0, 2, 3), (2, 3, 3), (3, 1, 3)]
    assert cut_of(4, chain) == {1}
    assert cut_of(4, [(0, 2, 3), (2, 3, 2), (3, 1, 3)]) == {1, 3}


def test_a_long_chain_takes_no_recursion() -> None:
    chain: list[Edge] = [(n, n + 1, 5) for n in range(2, 20_000)]
    found = cut_of(20_001, [(0, 2, None), *chain, (20_000, 1, 7), (2, 1, 1)])
    assert found == {1, 20_000}
