from __future__ import annotations

import numpy as np
import pytest

from onnxtrain import set_seed
from onnxtrain.runtime import seeds
from runtime.small import session
from training.small import load_module, model_of, normal, write_artifacts

RANDOM = "() => (float[4] y) { y = RandomUniform<shape=[4]>() }"


@pytest.fixture(autouse=True)
def _no_seed_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds._Process, "seeds", None)


def two() -> np.ndarray:
    return np.stack([session(RANDOM).run(None, {})[0] for _ in range(2)])


def test_sessions_follow_the_seed_of_the_process_and_differ() -> None:
    set_seed(3)
    first = two()
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first, two())
    set_seed(3)
    np.testing.assert_array_equal(two(), first)
    set_seed(4)
    assert not np.array_equal(two(), first)


def test_a_seed_of_its_own_comes_first() -> None:
    set_seed(3)
    own = session(RANDOM, seed=5).run(None, {})[0]
    set_seed(4)
    np.testing.assert_array_equal(session(RANDOM, seed=5).run(None, {})[0], own)


def test_dropout_of_a_module_follows_the_seed_of_the_process(tmp_path) -> None:
    body = """(float[N,4] x) => (float[N,64] y)
        <float ratio = {0.5}, bool training = {1}>
        { h = MatMul(x, w) y = Dropout(h, ratio, training) }"""
    model = model_of(body, {"w": normal(4, 64)})
    folder = write_artifacts(tmp_path, model, requires_grad=["w"], frozen_params=[])

    def scores() -> list[np.ndarray]:
        module = load_module(folder)
        return [module(np.ones((2, 4), np.float32), np.zeros(2, np.int64))[1] for _ in range(2)]

    set_seed(1)
    first = scores()
    assert not np.array_equal(first[0], first[1])
    set_seed(1)
    np.testing.assert_array_equal(scores(), first)
