import numpy as np
import pytest

from onnxtrain.data import Batches, Order, split
from onnxtrain.errors import FeedError


def test_an_epoch_has_every_sample_once():
    order = Order(samples=10, batch_size=3, seed=7)
    assert order.steps_per_epoch == 4
    for epoch in range(3):
        steps = [order.indices(epoch * 4 + place) for place in range(4)]
        assert [len(step) for step in steps] == [3, 3, 3, 1]
        assert sorted(np.concatenate(steps)) == list(range(10))


def test_every_epoch_has_another_order_and_a_seed_repeats_it():
    order, same, other = Order(50, 50, seed=1), Order(50, 50, seed=1), Order(50, 50, seed=2)
    assert list(order.indices(0)) != list(order.indices(1))
    assert list(order.indices(1)) == list(same.indices(1))
    assert list(order.indices(0)) != list(other.indices(0))


def test_whole_batches_leave_the_rest_out():
    order = Order(samples=10, batch_size=4, seed=0, whole=True)
    assert order.steps_per_epoch == 2
    assert all(len(order.indices(step)) == 4 for step in range(6))


def test_too_few_samples_for_a_batch_are_refused():
    with pytest.raises(FeedError, match="3 samples do not fill one batch of 4"):
        Order(samples=3, batch_size=4, seed=0, whole=True)


def test_batches_take_the_same_samples_of_every_array():
    batches = Batches({"x": np.arange(9), "y": np.arange(9) * 2}, Order(9, 4, seed=3))
    for step in range(5):
        batch = batches.at(step)
        np.testing.assert_array_equal(batch["y"], batch["x"] * 2)


def test_iteration_is_one_epoch_in_the_order_of_the_file():
    batches = Batches({"x": np.arange(5)}, Order(5, 2, seed=3))
    assert [list(batch["x"]) for batch in batches] == [[0, 1], [2, 3], [4]]


def test_a_split_is_disjoint_complete_and_repeatable():
    arrays = {"x": np.arange(20), "y": np.arange(20)}
    training, held = split(arrays, 0.25, seed=0)
    assert len(held["x"]) == 5
    assert sorted([*training["x"], *held["x"]]) == list(range(20))
    np.testing.assert_array_equal(held["x"], held["y"])
    np.testing.assert_array_equal(held["x"], split(arrays, 0.25, seed=0)[1]["x"])
    assert list(held["x"]) != list(split(arrays, 0.25, seed=1)[1]["x"])


def test_a_split_needs_both_parts():
    with pytest.raises(FeedError, match="leaves 0 of 3 samples"):
        split({"x": np.arange(3)}, 0.1, seed=0)
