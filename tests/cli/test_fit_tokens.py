"""Language models: scores with the classes last, the tokens themselves as targets."""

import json
import pathlib

import numpy as np
import onnx
import pytest

from graph.text import proto

WORDS = 5
TABLE = ",".join(str((7 * i % 11) / 10) for i in range(WORDS * WORDS))
RUN = ("fit", "lm.onnx", "--data", "tokens.npz", "--lr", "0.3", "--epochs", "12", "--device", "cpu",
       "--batch-size", "8")  # fmt: skip


@pytest.fixture
def counting(folder):
    """A table from each token to scores of the next, and sequences that count up."""
    text = (
        f"(int64[N,T] input_ids) => (float[N,T,{WORDS}] scores) "
        f"<float[{WORDS},{WORDS}] w = {{{TABLE}}}> {{ scores = Gather(w, input_ids) }}"
    )
    onnx.save(proto(text), "lm.onnx")
    starts = np.arange(32)[:, None]
    tokens = (starts + np.arange(6)) % WORDS
    np.savez("tokens.npz", input_ids=tokens)
    return tokens


def final_figures() -> dict[str, float]:
    return json.loads(pathlib.Path("log.jsonl").read_text().splitlines()[-1])


def test_the_next_token_is_learnt_without_labels(counting, cli):
    cli(*RUN, "--loss", "next_token", "--val-split", "0.25", "--log", "log.jsonl", "--report",
        "run.html")  # fmt: skip
    page = pathlib.Path("run.html").read_text()
    assert "cannot be profiled" not in page
    assert "ms a step" in page and "GatherGrad" in page and "MiB alive after each node" in page
    found = final_figures()
    assert found["val_accuracy"] == 1.0
    assert 1.0 < found["val_perplexity"] < 1.5


def test_labels_of_minus_100_do_not_count(counting, cli):
    labels = (counting + 1) % WORDS
    labels[:, ::2] = -100
    np.savez("tokens.npz", input_ids=counting, labels=labels)
    cli(*RUN, "--loss", "token_cross_entropy", "--val-split", "0.25", "--log", "log.jsonl")
    assert final_figures()["val_accuracy"] == 1.0
    np.savez("tokens.npz", input_ids=counting, labels=labels + 200)
    output = cli(*RUN, "--loss", "token_cross_entropy", code=1)
    assert "the model has 5 classes" in output


def test_labels_that_do_not_count_stay_so_where_others_are_counted_from_one(counting, cli):
    labels = (counting + 1) % WORDS
    run = (*RUN, "--loss", "token_cross_entropy")
    for first, out in ((0, "a.onnx"), (1, "b.onnx")):
        given = labels + first
        given[:, ::2] = -100
        np.savez("tokens.npz", input_ids=counting, labels=given)
        cli(*run, "--first-label", str(first), "--out", out)
    assert pathlib.Path("a.onnx").read_bytes() == pathlib.Path("b.onnx").read_bytes()


def test_the_wrong_loss_is_told_about_the_right_one(counting, cli):
    np.savez("tokens.npz", input_ids=counting, labels=counting)
    assert "use --loss token_cross_entropy" in cli(*RUN, "--loss", "cross_entropy", code=1)
