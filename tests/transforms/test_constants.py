"""Constants that look like weights: masks, tables of positions, and statistics made by nodes."""

from __future__ import annotations

import numpy as np
import pytest

from training.small import normal
from transforms.deciding import decision_on_c


def test_statistics_that_are_inputs_too_and_are_cast_first_are_no_weights():
    vector = np.ones(3, np.float32)
    line = "d = Cast<to=11>(c) e = Cast<to=1>(d) y = BatchNormalization(m, v, v, v, e)"
    assert decision_on_c(line, vector, v=vector).reason == "running variance of BatchNormalization"


@pytest.mark.parametrize(
    "line",
    [
        "v = Add(c, tiny) r = Sqrt(v) y = Div(m, r)",
        "v = Add(tiny, c) r = Pow(v, power) y = Mul(m, r)",
        "u = Reshape(c, shape) r = Sqrt(u) y = Div(m, r)",
    ],
)
def test_a_variance_whose_root_is_taken_is_no_weight(line):
    variance = np.array([1, 2, 3], np.float32)
    more = {"tiny": np.float32(1e-5), "power": np.float32(-0.5), "shape": np.array([1, 3])}
    assert decision_on_c(line, variance, **more).reason == "variance: its root is taken"
    for used in (line.replace("Sqrt", "Exp").replace("Pow(v, power)", "Exp(v)"), "y = Div(m, c)"):
        assert decision_on_c(used, variance, **more).trained
    assert decision_on_c("s = Add(m, c) a = Abs(s) y = Sqrt(a)", variance).trained
    assert decision_on_c("s = Add(m, c) y = Sqrt(s)", variance).trained


ANGLES = np.outer(np.arange(5), 100.0 ** -np.arange(0, 1, 0.25))
SINES, COSINES = np.sin(ANGLES), np.cos(ANGLES)


@pytest.mark.parametrize(
    "table",
    [
        np.stack([SINES, COSINES], axis=-1).reshape(5, 8),
        np.concatenate([SINES, COSINES], axis=1),
        np.concatenate([np.zeros((1, 8)), np.concatenate([SINES, COSINES], axis=1)])[[0, 2, 4, 1]],
        np.concatenate([SINES, COSINES, SINES[::-1], COSINES[::-1]], axis=1),
    ],
    ids=["neighbours", "halves", "beside zeros", "two directions"],
)
def test_a_table_of_sines_beside_cosines_is_not_trained(table):
    numbers = np.asarray(table, np.float32)
    indices = np.array([0, 1, 2])
    line = "g = Gather(c, i) r = ReduceMean<axes=[1], keepdims=0>(g) y = Add(m, r)"
    found = decision_on_c(line, numbers, i=indices)
    assert found.reason == "cosines or sines of positions"
    learned = numbers + 0.1 * normal(*numbers.shape)
    assert decision_on_c(line, learned, i=indices).trained
    for same in (np.ones_like(numbers), np.sign(learned)):
        assert decision_on_c(line, same, i=indices).trained


def test_a_table_of_which_sines_and_cosines_are_parted_is_not_trained():
    table = np.concatenate([SINES, COSINES], axis=1).astype(np.float32)
    line = "s, k = Split<axis=1>(c) a = Mul(s, k) b = ReduceMean<keepdims=0>(a) y = Add(m, b)"
    assert decision_on_c(line, table).reason == "cosines or sines of positions"
    assert decision_on_c(line, table + 0.1 * normal(*table.shape)).trained


@pytest.mark.parametrize("low", [-100, -1e4])
def test_what_rules_scores_out_may_be_smaller_if_the_rest_is_zeros(low):
    mask = np.array([[0, low, 0]], np.float32)
    found = decision_on_c("y = Add(m, c)", mask)
    assert found.reason == "mask: zeros, and numbers that rule scores out"
    assert decision_on_c("y = Add(m, c)", mask + 1).trained
    assert decision_on_c("y = Add(m, c)", -mask).trained


def test_ones_and_zeros_that_something_is_multiplied_by_are_no_weight():
    some = np.array([1, 0, 1], np.float32)
    pruned = decision_on_c("p = Mul(v, c) a = Add(m, p) y = Tanh(a)", some, v=normal(3))
    causal = decision_on_c("a = Mul(m, c) r = Sub(o, c) y = Add(a, r)", some, o=np.float32(1))
    assert pruned.reason == causal.reason == "mask: it holds ones and zeros"
    for same in (np.ones(3, np.float32), np.zeros(3, np.float32)):
        assert decision_on_c("y = Mul(m, c)", same).trained
    assert decision_on_c("y = Add(m, c)", some).trained, "a fresh bias of an LSTM's gates"
    assert decision_on_c("y = MatMul(m, c)", np.eye(3, dtype=np.float32)).trained


@pytest.mark.parametrize(
    ("line", "shape", "expected"),
    [
        ("r = RoiAlign(i, c, b)", (2, 4), "regions of RoiAlign"),
        ("r = MaxRoiPool<pooled_shape=[1, 1]>(i, c)", (2, 5), "regions of MaxRoiPool"),
        ("r = GridSample(i, c)", (1, 2, 2, 2), "places of GridSample"),
    ],
)
def test_where_an_image_is_read_is_no_weight(line, shape, expected):
    more = {"b": np.array([0, 0]), "s": np.array([1, 1, -1, 3])}
    image = f"i = Reshape(m, s) {line} f = ReduceMean<keepdims=0>(r) y = Add(m, f)"
    assert decision_on_c(image, abs(normal(*shape)), **more).reason == expected


@pytest.mark.parametrize(
    "line",
    [
        """n = Constant<value_int = 2>() y = Loop(n, , c) <body = b (int64 i, bool go, float[N,3] s)
            => (bool on, float[N,3] t) { on = Identity(go) t = Add(s, m) }>""",
        """e, y = Scan<num_scan_inputs = 1, body = b (float[3] s, float[3] r)
            => (float[3] t, float[3] u) { t = Add(s, r) u = Tanh(t) }>(c, m)""",
    ],
    ids=["Loop", "Scan"],
)
def test_zeros_that_a_loop_begins_with_are_no_weight(line):
    found = decision_on_c(line, np.zeros(3, np.float32))
    assert found.reason.startswith("zeros in the place of data")
    assert decision_on_c(line, normal(3)).trained
