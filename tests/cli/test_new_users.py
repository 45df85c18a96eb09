"""What a new user asks for and gets, and what is left when something fails at the end."""

import pathlib

import numpy as np
import onnx
import pytest

from cli.small import FEATURES, samples
from cli.test_mistakes import small_model
from onnxtrain.errors import SaveError
from onnxtrain.training.trainer import Trainer

COLUMNS = [f"f{i}" for i in range(FEATURES)]
FIT = ("fit", "model.onnx", "--data", "data.npz", "--loss", "cross_entropy", "--device", "cpu",
       "--steps", "2")  # fmt: skip


def table(name, targets):
    rows = [",".join(map(str, [*x, t])) for x, t in zip(samples()["x"], targets, strict=True)]
    pathlib.Path(name).write_text("\n".join([",".join([*COLUMNS, "label"]), *rows]))


def test_two_words_are_no_and_yes(folder, cli):
    onnx.save(small_model("MatMul", 1), "model.onnx")
    answers = samples()["labels"] == 1
    table("words.csv", np.where(answers, "yes", "no"))
    table("numbers.csv", answers.astype(int))
    written = []
    for data in ("words.csv", "numbers.csv"):
        output = cli("fit", "model.onnx", "--data", data, "--loss", "bce", "--steps", "3",
                     "--val-split", "0.2", "--device", "cpu")  # fmt: skip
        assert ("classes of 'target': 0 no, 1 yes" in output) == (data == "words.csv")
        assert "val_accuracy" in output
        written.append(pathlib.Path("trained.onnx").read_bytes())
    assert written[0] == written[1]


def test_targets_go_by_any_of_their_names(folder, cli):
    table("data.csv", samples()["labels"])
    text = pathlib.Path("data.csv").read_text().replace("label", "kind")
    pathlib.Path("data.csv").write_text(text)
    line = ("fit", "model.onnx", "--data", "data.csv", "--device", "cpu", "--steps", "1")
    for name in ("labels", "label", "target"):
        assert "wrote" in cli(*line, "--loss", "cross_entropy", "--map", f"{name}=kind")


def test_json_lines_train(folder, cli):
    import json

    data = samples()
    rows = zip(data["x"].tolist(), data["labels"].tolist(), strict=True)
    lines = [json.dumps({"x": x, "label": label}) for x, label in rows]
    pathlib.Path("data.jsonl").write_text("\n".join(lines))
    cli(*FIT, "--out", "npz.onnx")
    cli(*(word.replace("data.npz", "data.jsonl") for word in FIT), "--out", "jsonl.onnx")
    assert pathlib.Path("npz.onnx").read_bytes() == pathlib.Path("jsonl.onnx").read_bytes()


def test_adapters_tell_how_much_they_train(folder, cli):
    assert "adapters of rank 2 in 2 layers: 86 elements beside the 196 of" in cli(
        *FIT, "--lora", "2"
    )
    assert "wrote trained.onnx" in cli(*FIT, "--lora", "2", "--freeze", "w1.*")


RESUMED = {
    "optimizer": (("--optimizer", "sgd"), "optimizer  adamw then, sgd now"),
    "choice of weights": (("--last", "1"), "trained  not given then, --last 1 now"),
}


@pytest.mark.parametrize("case", RESUMED)
def test_other_options_than_those_of_the_checkpoint_are_named(folder, cli, case):
    options, expected = RESUMED[case]
    cli(*FIT, "--checkpoint", "run.ckpt")
    before = pathlib.Path("run.ckpt").read_bytes()
    output = cli(*FIT, "--steps", "4", "--checkpoint", "run.ckpt", "--resume", *options, code=1)
    assert expected in output
    assert "start anew without --resume" in output
    assert pathlib.Path("run.ckpt").read_bytes() == before


def test_a_run_that_is_over_says_so(folder, cli):
    cli(*FIT, "--checkpoint", "run.ckpt")
    output = cli(*FIT, "--checkpoint", "run.ckpt", "--resume")
    assert "all 2 steps were made already; give more --epochs" in output


def test_a_model_that_cannot_be_written_is_not_lost(folder, cli, monkeypatch):
    whole = cli(*FIT, "--out", "whole.onnx")
    assert "wrote whole.onnx" in whole

    def full(self, path):
        raise SaveError(f"cannot save '{path}': No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "save", full)
        output = cli(*FIT, code=1)
    assert "the weights are in 'trained.ckpt'" in output
    assert "onnxtrain export trained.ckpt model.onnx --out FILE.onnx" in output
    cli("export", "trained.ckpt", "model.onnx", "--out", "saved.onnx")
    assert pathlib.Path("saved.onnx").read_bytes() == pathlib.Path("whole.onnx").read_bytes()
