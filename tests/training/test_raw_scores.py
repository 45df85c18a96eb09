"""A warning where a loss of raw scores is given what its own activation made of them."""

from __future__ import annotations

import pathlib
import warnings

import numpy as np
import onnx
import pytest

from cli.small import classifier, samples
from graph.text import proto
from onnxtrain import artifacts, onnxblock
from onnxtrain.training.trainer import Trainer

HEAD = "(float[N,4] x) => (float[N,4] y) <float[4] w = {1,2,3,4}>"
CASES = [
    ("y = Softmax(h)", "cross_entropy", True),
    ("s = Softmax(h) y = Identity(s)", "cross_entropy", True),
    ("s = Sigmoid(h) d = Cast<to=11>(s) y = Cast<to=1>(d)", "bce", True),
    ("y = LogSoftmax(h)", "cross_entropy", False),
    ("s = Softmax(h) y = Log(s)", "cross_entropy", False),
    ("s = Softmax(h) y = Identity(h)", "cross_entropy", False),
    ("s = Softmax(h) y = Identity(s)", "mse", False),
    ("y = Sigmoid(h)", "cross_entropy", False),
]
TYPES = {
    "cross_entropy": artifacts.LossType.CrossEntropyLoss,
    "bce": artifacts.LossType.BCEWithLogitsLoss,
    "mse": artifacts.LossType.MSELoss,
}


def model_with(nodes: str) -> onnx.ModelProto:
    model = proto(f"{HEAD} {{ h = Mul(x, w) {nodes} }}")
    for node in model.graph.node:
        node.name = f"the_{node.op_type}"
    return model


def told(record: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message) for one in record if "takes raw scores" in str(one.message)]


@pytest.mark.parametrize(("nodes", "loss", "noticed"), CASES)
def test_it_is_noticed_behind_nodes_that_only_move_its_numbers(nodes, loss, noticed, tmp_path):
    model = model_with(nodes)
    with warnings.catch_warnings(record=True) as by_trainer:
        warnings.simplefilter("always")
        Trainer(model, loss=loss, device="cpu")
    with warnings.catch_warnings(record=True) as by_artifacts:
        warnings.simplefilter("always")
        artifacts.generate_artifacts(
            model, ["w"], loss=TYPES[loss], artifact_directory=tmp_path, optimizer=None
        )
    assert len(told(by_trainer)) == len(told(by_artifacts)) == int(noticed)
    for one in (*by_trainer, *by_artifacts):
        assert one.filename == __file__


def test_the_node_and_what_would_work_are_named(tmp_path):
    model = model_with("y = Softmax(h)")
    with pytest.warns(UserWarning, match=r"comes out of node 'the_Softmax' \(Softmax\)") as found:
        Trainer(model, loss="cross_entropy", device="cpu")
    assert "give it 'h' (outputs of Trainer" in str(found[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(model, loss="cross_entropy", outputs=["h"], device="cpu")
        artifacts.generate_artifacts(
            model,
            ["w"],
            loss=artifacts.LossType.CrossEntropyLoss,
            loss_input_names=["h"],
            artifact_directory=tmp_path,
        )


def test_losses_of_tokens_notice_it_too():
    text = """(int64[N,T] x) => (float[N,T,2] y) <float[3,2] w = {1,2,3,4,5,6}> {
        h = Gather(w, x)  y = Softmax(h)
    }"""
    for loss in ("next_token", "token_cross_entropy"):
        with pytest.warns(UserWarning, match="the Softmax of 'h'|'.*' \\(Softmax\\)"):
            Trainer(proto(text), loss=loss, device="cpu")


def test_the_place_is_that_of_the_user_in_a_block_of_another():
    class Halved(onnxblock.Block):
        def build(self, name: str) -> str:
            return str(onnxblock.loss.CrossEntropyLoss()(name))

    with pytest.warns(UserWarning, match="takes raw scores") as found:
        Trainer(model_with("y = Softmax(h)"), loss=Halved(), device="cpu")
    assert pathlib.Path(found[0].filename) == pathlib.Path(__file__)


def test_fit_says_it_once_as_a_note(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from onnxtrain.cli import app

    model = classifier()
    model.graph.node.add(op_type="Softmax", name="last", input=["logits"], output=["p"])
    model.graph.output[0].name = "p"
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "model.onnx")
    np.savez("data.npz", **samples())
    words = "fit model.onnx --data data.npz --loss cross_entropy --steps 1 --device cpu"
    output = CliRunner().invoke(app, words.split()).output
    lines = [line for line in output.splitlines() if line.startswith("note: CrossEntropyLoss")]
    assert len(lines) == 1 and "node 'last' (Softmax)" in lines[0]
    assert "UserWarning" not in output
