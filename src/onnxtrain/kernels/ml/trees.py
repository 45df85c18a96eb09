"""Decision trees: all rows walk down all trees at once, as many steps as the deepest tree has."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.ml.scores import Numbers, like, numbers, real, transformed
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.rehearsal import remembered
from onnxtrain.types import ML, DataType

Ints = Sequence[int]
FLOATING = frozenset({DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT16})
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
MEMBER, LEAF = len(MODES), len(MODES) + 1
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclasses.dataclass(frozen=True)
class Forest:
    """Nodes of all trees in one table, leaves among them (they lead to themselves).

    Attributes:
        roots: First node of each tree.
        depth: Steps from a root to the deepest leaf.
        feature, split, mode, missing: What a node compares, with what, how, and its answer to NaN.
        children: Next node for the answers no and yes, [node, 2].
        members: For each node the numbers of its set, filled up with NaN.
        places: For each weight its leaf and target, as a place in a table [node, target].
        present: Whether a leaf says anything about a target, [node, target].
    """

    roots: Tensor
    depth: int
    feature: Tensor
    split: Tensor
    mode: Tensor
    missing: Tensor
    children: Tensor
    members: Tensor
    places: Tensor
    present: Tensor

    def leaves(self, x: Tensor) -> Tensor:
        """The leaf that each row reaches in each tree."""
        node = self.roots.expand(len(x), -1)
        for _ in range(self.depth):
            value = x.gather(1, self.feature[node])
            yes = torch.where(value.isnan(), self.missing[node], self._answer(value, node))
            node = self.children[node, yes.to(torch.int64)]
        return node

    def _answer(self, value: Tensor, node: Tensor) -> Tensor:
        split, mode = self.split[node], self.mode[node]
        answers = [
            value <= split,
            value < split,
            value >= split,
            value > split,
            value == split,
            value != split,
            (value.unsqueeze(-1) == self.members[node]).any(-1),
        ]
        yes = torch.zeros_like(value, dtype=torch.bool)
        for index, answer in enumerate(answers):
            yes = torch.where(mode == index, answer, yes)
        return yes

    def scores(self, x: Tensor, weights: Tensor, aggregate: str) -> Tensor:
        """What the trees say about each target, put together."""
        leaf = self.leaves(x)
        table = weights.new_zeros(self.present.numel()).index_add(0, self.places, weights)
        values = table.reshape(self.present.shape)[leaf]
        if aggregate in ("SUM", "AVERAGE"):
            total = values.sum(1)
            return total / len(self.roots) if aggregate == "AVERAGE" else total
        present = self.present[leaf]
        if aggregate == "MIN":
            return torch.where(present, values, torch.inf).amin(1)
        return torch.where(present, values, -torch.inf).amax(1)


@dataclasses.dataclass(frozen=True)
class Table:
    """A forest as plain numbers, which can be compared and remembered."""

    roots: tuple[int, ...]
    feature: tuple[int, ...]
    split: tuple[float, ...]
    mode: tuple[int, ...]
    missing: tuple[int, ...]
    no: tuple[int, ...]
    yes: tuple[int, ...]
    members: tuple[float, ...]
    votes: tuple[tuple[int, int], ...]
    targets: int


@remembered(16)
def forest(table: Table, form: tuple[torch.dtype, torch.device]) -> Forest:
    """A table as tensors; leaves are the nodes with mode LEAF."""
    dtype, device = form
    count = len(table.mode)
    present = torch.zeros(count, table.targets, dtype=torch.bool)
    for node, target in table.votes:
        present[node, target] = True
    whole = functools.partial(torch.tensor, device=device, dtype=torch.int64)
    return Forest(
        roots=whole(table.roots),
        depth=_depth(table),
        feature=whole(table.feature),
        split=torch.tensor(table.split, dtype=dtype, device=device),
        mode=whole(table.mode),
        missing=whole(table.missing).to(torch.bool),
        children=torch.stack([whole(table.no), whole(table.yes)], 1),
        members=_members(table).to(device, dtype),
        places=whole([node * table.targets + target for node, target in table.votes]),
        present=present.to(device),
    )


def _depth(table: Table) -> int:
    """Steps until every row is at a leaf."""
    level, depth = set(table.roots), 0
    while level := {n for n in level if table.mode[n] != LEAF}:
        level = {table.no[n] for n in level} | {table.yes[n] for n in level}
        depth += 1
        if depth > len(table.mode):
            raise ValueError("the nodes of a tree go round in a circle")
    return depth


def _members(table: Table) -> Tensor:
    """The sets of the nodes that ask for membership, which NaN divides in the attribute."""
    sets: list[list[float]] = [[]]
    for value in table.members:
        if value != value:
            sets.append([])
        else:
            sets[-1].append(value)
    longest = max(map(len, sets), default=0)
    members = torch.full((len(table.mode), longest), torch.nan, dtype=torch.float64)
    asking = [node for node, mode in enumerate(table.mode) if mode == MEMBER]
    for node, found in zip(asking, sets, strict=False):
        members[node, : len(found)] = torch.tensor(found, dtype=torch.float64)
    return members


def listed(values: Any) -> tuple[Any, ...]:
    """Numbers of an attribute, be it a list or a tensor."""
    if values is None:
        return ()
    return tuple(values.reshape(-1).tolist() if isinstance(values, Tensor) else values)


@kernel("TreeEnsemble", domain=ML, since=5, T=FLOATING)
def tree_ensemble(
    x: Tensor,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Ints,
    leaf_weights: Numbers,
    membership_values: Tensor | None = None,
    n_targets: int | None = None,
    nodes_falseleafs: Ints,
    nodes_falsenodeids: Ints,
    nodes_featureids: Ints,
    nodes_hitrates: Tensor | None = None,
    nodes_missing_value_tracks_true: Ints = (),
    nodes_modes: Tensor,
    nodes_splits: Tensor,
    nodes_trueleafs: Ints,
    nodes_truenodeids: Ints,
    post_transform: int = 0,
    tree_roots: Ints,
) -> Tensor:
    """y[n, t] = the weights for target t of the leaves that row n reaches, aggregated."""
    inner, outer = len(nodes_featureids), len(leaf_targetids)
    leaves = range(inner, inner + outer)
    filler = (0,) * outer

    def led(ids: Ints, are_leaves: Ints) -> tuple[int, ...]:
        steps = zip(ids, are_leaves, strict=True)
        return (*(i + inner if leaf else i for i, leaf in steps), *leaves)

    table = Table(
        roots=tuple(tree_roots),
        feature=(*nodes_featureids, *filler),
        split=(*listed(nodes_splits), *filler),
        mode=(*listed(nodes_modes), *(LEAF,) * outer),
        missing=(*(nodes_missing_value_tracks_true or (0,) * inner), *filler),
        no=led(nodes_falsenodeids, nodes_falseleafs),
        yes=led(nodes_truenodeids, nodes_trueleafs),
        members=listed(membership_values),
        votes=tuple(zip(leaves, leaf_targetids, strict=True)),
        targets=n_targets or max(leaf_targetids) + 1,
    )
    wide = real(x)
    weights = numbers(leaf_weights, like(wide))
    scores = forest(table, like(wide)).scores(wide, weights, AGGREGATES[aggregate_function])
    return transformed(scores, TRANSFORMS[post_transform]).to(x.dtype)
