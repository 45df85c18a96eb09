import os
import pathlib
import signal
import subprocess

import numpy as np
import onnx
import onnxruntime
import pytest

from cli.small import FEATURES, classifier, samples
from cli.started import start
from onnxtrain.formats.native import read_native

FIT = ("fit", "model.onnx", "--data", "data.npz", "--loss", "cross_entropy", "--device", "cpu")
LONG = (*FIT, "--batch-size", "4", "--steps", "1000")


def accuracy(path: str) -> float:
    data = samples()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"x": data["x"]})
    return float((logits.argmax(axis=1) == data["labels"]).mean())


def test_trains_a_model_that_onnxruntime_runs(folder, cli):
    output = cli(*FIT, "--epochs", "40", "--lr", "0.02", "--val-split", "0.25")
    assert "48 samples" in output
    assert "epoch 40/40" in output
    assert "val_loss" in output and "val_accuracy" in output and "samples/s" in output
    assert accuracy("model.onnx") < 0.6
    assert accuracy("trained.onnx") > 0.8
    assert not pathlib.Path("trained.ckpt").exists()


def test_the_trained_file_differs_in_weights_only(folder, cli):
    cli(*FIT, "--steps", "3", "--out", "out.onnx")
    before, after = onnx.load("model.onnx"), onnx.load("out.onnx")
    for model in (before, after):
        del model.graph.initializer[:]
    assert before.graph.node == after.graph.node
    assert before.graph.input == after.graph.input
    assert before.graph.output == after.graph.output


def test_only_the_named_parameters_change(folder, cli):
    cli(*FIT, "--steps", "3", "--trainable", "*2")
    before, after = (
        {t.name: t.raw_data for t in onnx.load(path).graph.initializer}
        for path in ("model.onnx", "trained.onnx")
    )
    assert {name for name in before if before[name] != after[name]} == {"w2", "b2"}


def write_csv(path: str, names: list[str]) -> None:
    data = samples()
    table = np.column_stack([data["x"], data["labels"]])
    np.savetxt(path, table, delimiter=",", header=",".join(names), comments="")


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([f"x_{i}" for i in range(FEATURES)] + ["y"], id="numbered columns"),
        pytest.param(list("abcdefgh") + ["label"], id="columns of any name"),
    ],
)
def test_a_csv_file_trains_like_the_same_arrays(folder, cli, names):
    cli(*FIT, "--steps", "5", "--out", "a.onnx")
    write_csv("data.csv", names)
    cli("fit", "model.onnx", "--data", "data.csv", "--loss", "cross_entropy", "--device", "cpu",
        "--steps", "5", "--out", "b.onnx")  # fmt: skip
    assert pathlib.Path("a.onnx").read_bytes() == pathlib.Path("b.onnx").read_bytes()


def test_a_folder_of_files_trains_like_one_file(folder, cli):
    cli(*FIT, "--steps", "5", "--out", "a.onnx")
    data = samples()
    pathlib.Path("parts").mkdir()
    for index, part in enumerate((slice(0, 10), slice(10, None))):
        np.savez(f"parts/{index}.npz", **{name: array[part] for name, array in data.items()})
    cli("fit", "model.onnx", "--data", "parts", "--loss", "cross_entropy", "--device", "cpu",
        "--steps", "5", "--out", "b.onnx")  # fmt: skip
    assert pathlib.Path("a.onnx").read_bytes() == pathlib.Path("b.onnx").read_bytes()


def test_arrays_are_chosen_with_map(folder, cli):
    data = samples()
    np.savez("data.npz", points=data["x"], kinds=data["labels"], noise=np.zeros(64))
    assert "no data for 'x', 'labels'" in cli(*FIT, code=1)
    cli(*FIT, "--steps", "1", "--map", "x=points", "--map", "labels=kinds")


def test_a_model_with_a_fixed_batch_gets_whole_batches(folder, cli):
    onnx.save(classifier(batch=10), "model.onnx")
    assert "6 steps an epoch of 10 samples" in cli(*FIT, "--epochs", "1")
    assert "batches of 10 samples only" in cli(*FIT, "--batch-size", "8", code=1)


def test_regression_targets_take_the_shape_of_the_output(folder, cli):
    data = samples()
    np.savez("data.npz", x=data["x"], target=data["x"][:, :3].astype(np.float64).reshape(64, 3, 1))
    output = cli("fit", "model.onnx", "--data", "data.npz", "--loss", "mse", "--steps", "2")
    assert "epoch 1/1" in output


@pytest.mark.parametrize("warmup", [0, 3])
def test_a_continued_run_ends_where_an_unbroken_one_does(folder, cli, warmup):
    steps = ("--batch-size", "5", "--lr", "0.01", "--warmup", str(warmup))
    cli(*FIT, *steps, "--steps", "40", "--out", "whole.onnx")
    cli(*FIT, *steps, "--steps", "17", "--out", "part.onnx", "--checkpoint", "run.ckpt")
    cli(*FIT, *steps, "--steps", "40", "--out", "part.onnx", "--checkpoint", "run.ckpt", "--resume")
    assert pathlib.Path("whole.onnx").read_bytes() == pathlib.Path("part.onnx").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_a_checkpoint_and_the_run_goes_on_exactly(folder, cli, number):
    cli(*LONG, "--out", "whole.onnx")
    process = start(*LONG, "--out", "part.onnx", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not process.stdout.readline().startswith("epoch 1/"):
        assert process.poll() is None
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}" in output
    assert "--resume" in output
    assert errors == ""
    assert not pathlib.Path("part.onnx").exists()
    assert "continuing after step" in cli(*LONG, "--out", "part.onnx", "--resume")
    assert pathlib.Path("whole.onnx").read_bytes() == pathlib.Path("part.onnx").read_bytes()
    assert not pathlib.Path("part.ckpt").exists()


def test_a_reader_that_goes_away_leaves_a_checkpoint(folder, cli):
    """As with  onnxtrain fit ... | head -n 1"""
    cli(*LONG, "--out", "whole.onnx")
    process = start(*LONG, "--out", "part.onnx", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not process.stdout.readline().startswith("epoch 1/"):
        assert process.poll() is None
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=60) == 128 + signal.SIGPIPE
    assert errors.startswith("stopped by SIGPIPE after step")
    assert errors.endswith("to go on from there\n")
    assert "continuing after step" in cli(*LONG, "--out", "part.onnx", "--resume")
    assert pathlib.Path("whole.onnx").read_bytes() == pathlib.Path("part.onnx").read_bytes()


def test_checkpoints_are_written_on_the_way(folder, cli, monkeypatch):
    from onnxtrain.training.trainer import Trainer

    written = []
    monkeypatch.setattr(
        Trainer, "checkpoint", lambda self, path, extra: written.append(extra["position"])
    )
    cli(*FIT, "--steps", "10", "--checkpoint-every", "4")
    assert written == [4, 8]


def test_a_terminal_gets_a_bar(folder):
    pty = pytest.importorskip("pty", reason="pseudo terminals are a matter of Unix")
    master, slave = pty.openpty()
    process = start(*FIT, "--epochs", "30", stdout=slave, stderr=slave)
    os.close(slave)
    output = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        output += part
    os.close(master)
    assert process.wait(60) == 0
    text = output.decode()
    assert "━" in text
    assert "\x1b[" in text
    assert "60/60" in text
    assert "samples/s" in text and "left" in text


BAD = {
    "no model": (("fit", "none.onnx", *FIT[2:]), "there is no file 'none.onnx'"),
    "not a model": (("fit", "data.npz", *FIT[2:]), "is not an ONNX model"),
    "no data": ((*FIT, "--data", "none.npz"), "there is no file 'none.npz'"),
    "unknown data": ((*FIT, "--data", "model.onnx"), "its kind is not known"),
    "loss": ((*FIT, "--loss", "hinge"), "unknown loss 'hinge'"),
    "optimizer": ((*FIT, "--optimizer", "magic"), "unknown optimizer 'magic'"),
    "device": ((*FIT, "--device", "abacus"), "unknown device 'abacus'"),
    "trainable": ((*FIT, "--trainable", "head*"), "no parameter matches 'head*'"),
    "map": ((*FIT, "--map", "x"), "--map takes INPUT=ARRAY"),
    "maps": ((*FIT, "--map", "x=a", "--map", "x=b"), "--map gives input 'x' a and b"),
    "map to nothing": ((*FIT, "--map", "x=z"), "there is no array 'z'"),
    "map from nothing": ((*FIT, "--map", "z=x"), "the model has no input 'z'"),
    "split": ((*FIT, "--val-split", "0.001"), "leaves 0 of 64 samples"),
    "resume": ((*FIT, "--resume"), "there is no checkpoint 'trained.ckpt'"),
    "folder": ((*FIT, "--out", "none/out.onnx"), "there is no folder 'none'"),
    "rate": ((*FIT, "--lr", "1e30"), "the loss is nan after step"),
    "targets": ((*FIT, "--loss", "mse"), "samples of shape []"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_explained(folder, cli, case):
    args, message = BAD[case]
    assert message in cli(*args, code=1)
    assert not pathlib.Path("trained.onnx").exists()


@pytest.mark.parametrize("option", [("--epochs", "0"), ("--batch-size", "-1"), ("--lr", "fast")])
def test_options_that_make_no_sense_are_refused(folder, cli, option):
    assert option[0] in cli(*FIT, *option, code=2)


def test_a_checkpoint_is_not_overwritten_by_a_new_run(folder, cli):
    cli(*FIT, "--steps", "2", "--checkpoint", "run.ckpt")
    before = pathlib.Path("run.ckpt").read_bytes()
    assert "is there already" in cli(*FIT, "--steps", "2", "--checkpoint", "run.ckpt", code=1)
    assert pathlib.Path("run.ckpt").read_bytes() == before


def test_a_run_is_only_continued_with_its_own_settings_data_and_model(folder, cli):
    again = (*FIT, "--steps", "4", "--checkpoint", "run.ckpt", "--resume")
    cli(*FIT, "--steps", "2", "--checkpoint", "run.ckpt")
    assert "batch size  32 then, 8 now" in cli(*again, "--batch-size", "8", code=1)
    assert "seed  0 then, 1 now" in cli(*again, "--seed", "1", code=1)
    data = samples()
    np.savez("data.npz", x=data["x"][::-1], labels=data["labels"][::-1])
    assert "data" in cli(*again, code=1)
    assert "--trainable ['w1'] now" in cli(*again, "--trainable", "w1", code=1)
    np.savez("data.npz", **data)
    other = onnx.load("model.onnx")
    other.graph.initializer[0].name = other.graph.node[0].input[1] = "renamed"
    onnx.save(other, "model.onnx")
    assert "belongs to another model: it has 'w1'" in cli(*again, code=1)
    pathlib.Path("run.ckpt").write_bytes(b"nonsense")
    assert "cannot load checkpoint" in cli(*again, code=1)


def test_divergence_does_not_replace_a_good_checkpoint(folder, cli):
    cli(*FIT, "--steps", "2", "--checkpoint", "run.ckpt")
    go_on = ("--steps", "9", "--checkpoint", "run.ckpt", "--resume", "--checkpoint-every", "2")
    output = cli(*FIT, *go_on, "--lr", "1e30", code=1)
    assert "the loss is nan" in output and "the last checkpoint are in 'run.ckpt'" in output
    tensors, _ = read_native("run.ckpt")
    assert all(np.isfinite(tensors[f"param/{name}"]).all() for name in ("w1", "b1", "w2", "b2"))


def test_a_run_that_fails_tells_where_its_best_weights_are(folder, cli):
    pathlib.Path("late_fault.py").write_text(
        "import torch.nn.functional as F\ncalls = []\n"
        "def loss(outputs, batch):\n    calls.append(1)\n"
        "    found = F.cross_entropy(outputs['logits'], batch['labels'])\n"
        "    return found * (float('nan') if len(calls) > 9 else 1)\n"
    )
    line = ("fit", "model.onnx", "--data", "data.npz", "--loss", "late_fault:loss", "--device")
    output = cli(*line, "cpu", "--val-split", "0.25", "--keep", "best", "--val-every", "1", code=1)
    assert "the loss is nan" in output
    (told,) = [line for line in output.splitlines() if "  write them with  onnxtrain " in line]
    cli(*told.split("onnxtrain ")[1].replace("FILE.onnx", "best.onnx").split())
    best = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load("best.onnx").graph.initializer}
    assert all(np.isfinite(array).all() for array in best.values())
