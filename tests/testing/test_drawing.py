"""Inputs for models that come without data."""

import numpy as np
import pytest

from graph.text import model, proto
from onnxtrain.errors import FeedError
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.drawing import draw_feeds


def feeds_of(text: str, **options):
    session = InferenceSession(proto(text))
    return draw_feeds(prepare(model(text)), lambda feeds: session.run(None, feeds), **options)


def test_sizes_that_the_model_takes_are_found():
    zeros = ", ".join(["0.0"] * (4 * 3 * 48 * 48))
    text = f"""(float[N,3,H,W] x) => (float[N,4,h,w] y) <float[4,3,48,48] k = {{{zeros}}}> {{
        y = Conv(x, k)
    }}"""
    feeds = feeds_of(text)
    assert feeds["x"].shape[1] == 3 and min(feeds["x"].shape[2:]) >= 48


def test_dimensions_of_one_name_have_one_size():
    feeds = feeds_of("(float[N,K] x, float[N,K] z) => (float[N,K] y) { y = Add(x, z) }")
    assert feeds["x"].shape == feeds["z"].shape


def test_ids_stay_below_the_number_of_rows():
    text = """(int64[N,S] ids, float[N,S] f) => (float[N,S,2] y, float[N,S,2] z)
      <float[5,2] table = {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0}> {
        y = Gather(table, ids)
        whole = Cast <to = 7> (f)
        z = Gather(table, whole)
    }"""
    feeds = feeds_of(text)
    for name in ("ids", "f"):
        assert feeds[name].min() >= 0 and 1 < feeds[name].max() <= 4
        assert np.array_equal(feeds[name], np.round(feeds[name]))


def test_a_number_that_is_compared_is_the_one_that_it_is_compared_with():
    text = """(int64 rate, float[4] x) => (float[4] y) {
        known = Constant <value = int64 {16000}> ()
        same = Equal(rate, known)
        y = If (same) <then_branch = t () => (float[4] a) { a = Neg(x) },
                       else_branch = e () => (float[4] b) { b = Abs(x) }>
    }"""
    assert feeds_of(text)["rate"] == 16000


def test_sounds_are_long():
    feeds = feeds_of("(float[N,T] waveform) => (float[N,T] y) { y = Relu(waveform) }")
    assert feeds["waveform"].shape == (2, 16000)


def test_lengths_are_at_least_half_of_what_they_are_the_lengths_of():
    text = """(float[N, T] x, int64[N] x_lens) => (float[N, T] y, int64[N] n) {
        y = Relu(x)  n = Identity(x_lens)
    }"""
    feeds = feeds_of(text)
    assert feeds["x_lens"].dtype == np.int64 and feeds["x_lens"].shape == feeds["x"].shape[:1]
    longest = feeds["x"].shape[1]
    assert ((feeds["x_lens"] >= longest // 2) & (feeds["x_lens"] <= longest)).all()


def test_given_inputs_are_kept_and_a_seed_repeats():
    text = "(float[N] x, float[N] z) => (float[N] y) { y = Add(x, z) }"
    given = {"z": np.ones(1, np.float32)}
    first, second = (feeds_of(text, given=given, seed=1) for _ in range(2))
    assert np.array_equal(first["x"], second["x"]) and first["z"] is given["z"]


def test_inputs_that_never_fit_are_an_error_with_the_reason():
    text = "(float[N] x) => (float[N] y) { y = Neg(x) }"
    with pytest.raises(FeedError, match=r"no made-up inputs fit .*: too small\n .*x tensor"):
        draw_feeds(prepare(model(text)), lambda feeds: exec("raise ValueError('too small')"))


def test_text_is_made_up_of_words():
    text = "(string[N] x) => (string[N] y) { y = Identity(x) }"
    words = feeds_of(text)["x"]
    assert words.dtype == object and all(isinstance(word, str) for word in words)


def test_complex_numbers_cannot_be_made_up():
    text = "(complex64[N] x) => (complex64[N] y) { y = Identity(x) }"
    with pytest.raises(FeedError, match="cannot make up input 'x'"):
        feeds_of(text)
