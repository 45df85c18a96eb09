import numpy as np
import pytest

from onnxtrain.data import LABELS, Arrays, Slot, bind
from onnxtrain.errors import FeedError

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
X = Slot("x", FLOAT, (None, 2, 3))
Y = Slot("labels", INT, (None,), LABELS)


def arrays(**values) -> Arrays:
    return Arrays({k: np.asarray(v) for k, v in values.items()}, tabular=False, source="file")


def columns(**values) -> Arrays:
    return Arrays({k: np.asarray(v, float) for k, v in values.items()}, tabular=True, source="file")


@pytest.mark.parametrize("name", LABELS)
def test_labels_go_by_many_names(name):
    found = bind(arrays(x=np.zeros((4, 2, 3)), **{name: np.arange(4.0)}), [X, Y])
    assert found["labels"].dtype == INT
    assert list(found["labels"]) == [0, 1, 2, 3]


def test_samples_are_regrouped_to_the_shape_of_the_input():
    flat = np.arange(24, dtype=np.uint8).reshape(4, 6)
    found = bind(arrays(x=flat), [X])["x"]
    assert found.dtype == FLOAT
    np.testing.assert_array_equal(found, flat.reshape(4, 2, 3))


def test_one_slot_takes_the_one_array_that_is_left():
    found = bind(arrays(pixels=np.ones((4, 2, 3)), y=np.zeros(4)), [X, Y])
    assert found["x"].sum() == 24


def test_numbered_columns_are_joined_in_their_order():
    slot = Slot("x", FLOAT, (None, 3))
    found = bind(columns(x_10=[3, 6], x_2=[2, 5], x_1=[1, 4], other=[0, 0]), [slot])["x"]
    np.testing.assert_array_equal(found, [[1, 2, 3], [4, 5, 6]])


def test_all_other_columns_feed_the_one_input():
    found = bind(columns(a=[1, 2], b=[3, 4], y=[0, 1]), [Slot("x", FLOAT, (None, 2)), Y])
    np.testing.assert_array_equal(found["x"], [[1, 3], [2, 4]])


def test_arrays_are_not_stacked_like_columns():
    with pytest.raises(FeedError, match="no data for 'x'"):
        bind(arrays(a=np.zeros(2), b=np.zeros(2)), [Slot("x", FLOAT, (None, 2))])


BAD = {
    "nothing fits": (arrays(a=np.zeros((4, 6)), b=np.zeros((4, 6))), "no data for 'x'"),
    "shape": (arrays(x=np.zeros((4, 5))), r"samples of shape \[5\], the model wants \[2, 3\]"),
    "words": (arrays(x=[["a"] * 6]), "not numbers"),
    "number": (arrays(x=1.0), "single number"),
    "too large": (arrays(x=np.full((4, 2, 3), 1e39)), r"has 1e\+39, which float32 cannot hold"),
    "records": (arrays(x=np.zeros((4, 6), [("a", "i4")])), "not numbers"),
    "empty": (arrays(x=np.zeros((0, 2, 3))), "at least one"),
}


@pytest.mark.parametrize("case", BAD)
def test_arrays_that_do_not_fit_are_refused(case):
    data, message = BAD[case]
    with pytest.raises(FeedError, match=message):
        bind(data, [X])


@pytest.mark.parametrize("labels", [[0.5], [np.nan], [np.inf], [1e30]])
def test_labels_must_be_whole_numbers(labels):
    with pytest.raises(FeedError, match="values that are no int64"):
        bind(arrays(labels=labels), [Y])


def test_whole_numbers_do_not_change_their_sign():
    with pytest.raises(FeedError, match="values that are no int64"):
        bind(arrays(labels=np.array([2**64 - 1], np.uint64)), [Y])
    slot = Slot("x", np.dtype(np.uint64), (None,))
    with pytest.raises(FeedError, match="values that are no uint64"):
        bind(arrays(x=np.array([-1])), [slot])


def test_infinities_and_the_largest_number_pass():
    given = np.array([[-np.inf, np.inf, np.finfo(np.float32).max, 0, 1, 2]])
    np.testing.assert_array_equal(bind(arrays(x=given), [X])["x"].ravel(), given.ravel())


def test_all_arrays_must_have_the_same_number_of_samples():
    with pytest.raises(FeedError, match=r"same number of samples.*\n.*x: 4, labels: 3"):
        bind(arrays(x=np.zeros((4, 6)), labels=np.zeros(3)), [X, Y])


def test_a_free_dimension_takes_any_size():
    slot = Slot("x", FLOAT, (None, None, 3))
    assert bind(arrays(x=np.zeros((4, 7, 3))), [slot])["x"].shape == (4, 7, 3)
