"""The two tree operators before TreeEnsemble, which name nodes by tree and node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxtrain.kernels.ml.scores import (
    NUMBERS,
    Numbers,
    given_type,
    labelled,
    like,
    numbers,
    real,
    transformed,
)
from onnxtrain.kernels.ml.trees import LEAF, MODES, Ints, Table, forest, listed
from onnxtrain.kernels.registry import kernel
from onnxtrain.types import ML


def _old_table(
    treeids: Ints,
    nodeids: Ints,
    features: Ints,
    splits: Any,
    modes: Sequence[str],
    no: Ints,
    yes: Ints,
    missing: Ints,
    votes: Sequence[tuple[int, int, int]],
    targets: int,
) -> Table:
    """A table from nodes that are known by the ids of their tree and within it."""
    place = {key: index for index, key in enumerate(zip(treeids, nodeids, strict=True))}
    kinds = [LEAF if mode == "LEAF" else MODES.index(mode) for mode in modes]

    def led(ids: Ints) -> tuple[int, ...]:
        return tuple(
            index if kinds[index] == LEAF else place[tree, ids[index]]
            for index, tree in enumerate(treeids)
        )

    after_no, after_yes = led(no), led(yes)
    inner = [index for index, kind in enumerate(kinds) if kind != LEAF]
    reached = {step[index] for step in (after_no, after_yes) for index in inner}
    return Table(
        roots=tuple(index for index in range(len(kinds)) if index not in reached),
        feature=tuple(features),
        split=listed(splits),
        mode=tuple(kinds),
        missing=tuple(missing or (0,) * len(kinds)),
        no=after_no,
        yes=after_yes,
        members=(),
        votes=tuple((place[tree, node], target) for tree, node, target in votes),
        targets=targets,
    )


def _scores(x: Tensor, table: Table, weights: Numbers, aggregate: str, base: Numbers) -> Tensor:
    wide = real(x)
    trees = forest(table, like(wide))
    scores = trees.scores(wide, numbers(weights, like(wide)), aggregate)
    return scores + numbers(base, like(wide)) if len(base) else scores


def _first(values: Numbers | None, tensor: Tensor | None) -> Numbers:
    """Weights, which are numbers or a tensor."""
    found = tensor if values is None else values
    return () if found is None else found


@kernel("TreeEnsembleRegressor", domain=ML, T=NUMBERS)
def tree_ensemble_regressor(
    x: Tensor,
    *,
    aggregate_function: str = "SUM",
    base_values: Numbers | None = None,
    base_values_as_tensor: Tensor | None = None,
    n_targets: int = 1,
    nodes_falsenodeids: Ints,
    nodes_featureids: Ints,
    nodes_hitrates: Sequence[float] | None = None,
    nodes_hitrates_as_tensor: Tensor | None = None,
    nodes_missing_value_tracks_true: Ints = (),
    nodes_modes: Sequence[str],
    nodes_nodeids: Ints,
    nodes_treeids: Ints,
    nodes_truenodeids: Ints,
    nodes_values: Sequence[float] | None = None,
    nodes_values_as_tensor: Tensor | None = None,
    post_transform: str = "NONE",
    target_ids: Ints,
    target_nodeids: Ints,
    target_treeids: Ints,
    target_weights: Numbers | None = None,
    target_weights_as_tensor: Tensor | None = None,
) -> Tensor:
    """y[n, t] = base + the weights for target t of the leaves that row n reaches, aggregated."""
    weights = _first(target_weights, target_weights_as_tensor)
    table = _old_table(
        nodes_treeids,
        nodes_nodeids,
        nodes_featureids,
        nodes_values_as_tensor if nodes_values is None else nodes_values,
        nodes_modes,
        nodes_falsenodeids,
        nodes_truenodeids,
        nodes_missing_value_tracks_true,
        list(zip(target_treeids, target_nodeids, target_ids, strict=True)),
        n_targets,
    )
    base = _first(base_values, base_values_as_tensor)
    scores = _scores(x, table, weights, aggregate_function, base)
    return transformed(scores, post_transform).to(given_type(target_weights))


@kernel("TreeEnsembleClassifier", domain=ML, outputs=2, T1=NUMBERS)
def tree_ensemble_classifier(
    x: Tensor,
    *,
    base_values: Numbers | None = None,
    base_values_as_tensor: Tensor | None = None,
    class_ids: Ints,
    class_nodeids: Ints,
    class_treeids: Ints,
    class_weights: Numbers | None = None,
    class_weights_as_tensor: Tensor | None = None,
    classlabels_int64s: Ints | None = None,
    classlabels_strings: Sequence[str] | None = None,
    nodes_falsenodeids: Ints,
    nodes_featureids: Ints,
    nodes_hitrates: Sequence[float] | None = None,
    nodes_hitrates_as_tensor: Tensor | None = None,
    nodes_missing_value_tracks_true: Ints = (),
    nodes_modes: Sequence[str],
    nodes_nodeids: Ints,
    nodes_treeids: Ints,
    nodes_truenodeids: Ints,
    nodes_values: Sequence[float] | None = None,
    nodes_values_as_tensor: Tensor | None = None,
    post_transform: str = "NONE",
) -> tuple[Any, Tensor]:
    """Label of the largest score, and all scores: base + the weights of the leaves reached."""
    weights = _first(class_weights, class_weights_as_tensor)
    labels = len(classlabels_int64s or classlabels_strings or ())
    table = _old_table(
        nodes_treeids,
        nodes_nodeids,
        nodes_featureids,
        nodes_values_as_tensor if nodes_values is None else nodes_values,
        nodes_modes,
        nodes_falsenodeids,
        nodes_truenodeids,
        nodes_missing_value_tracks_true,
        list(zip(class_treeids, class_nodeids, class_ids, strict=True)),
        labels,
    )
    base = _first(base_values, base_values_as_tensor)
    scores = _scores(x, table, weights, "SUM", base)
    if len(set(class_ids)) == 1 and labels <= 2:
        scores = _two_sided(scores[:, class_ids[0]], post_transform)
    scores = transformed(scores, post_transform).to(given_type(class_weights))
    names = (
        ["", *classlabels_strings] if classlabels_strings and labels == 1 else classlabels_strings
    )
    numbers = [0, *classlabels_int64s] if classlabels_int64s and labels == 1 else classlabels_int64s
    return labelled(scores.argmax(1), numbers, names), scores


def _two_sided(score: Tensor, post_transform: str) -> Tensor:
    """Scores of both classes from that of one: what is left of 1, or the opposite."""
    other = 1 - score if post_transform in ("NONE", "PROBIT") else -score
    return torch.stack([other, score], 1)
