import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from cli.small import classifier, samples
from onnxtrain import artifacts
from onnxtrain.formats import odtc

FIT = ("fit", "model.onnx", "--data", "data.npz", "--loss", "cross_entropy", "--device", "cpu")
WEIGHTS = ["w1", "b1", "w2", "b2"]


def logits(path: str) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (result,) = session.run(["logits"], {"x": samples()["x"]})
    return result


@pytest.fixture
def trained(folder, cli):
    """A finished run with its checkpoint."""
    cli(*FIT, "--steps", "5", "--checkpoint", "run.ckpt", "--out", "fit.onnx")


def make_artifacts(*outputs: str) -> None:
    pathlib.Path("artifacts").mkdir()
    artifacts.generate_artifacts(
        onnx.load("model.onnx"),
        requires_grad=WEIGHTS,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory="artifacts",
        additional_output_names=list(outputs),
    )


@pytest.fixture
def made(folder):
    """Training artifacts whose evaluation model gives the logits, too."""
    make_artifacts("logits")


def test_a_checkpoint_of_fit_becomes_the_model_that_fit_wrote(trained, cli):
    assert "wrote out.onnx" in cli("export", "run.ckpt", "model.onnx", "--out", "out.onnx")
    assert pathlib.Path("out.onnx").read_bytes() == pathlib.Path("fit.onnx").read_bytes()


@pytest.mark.parametrize("model", ["artifacts", "artifacts/eval_model.onnx"])
def test_artifacts_become_an_inference_model(made, cli, model):
    data = odtc.read_checkpoint("artifacts/checkpoint")
    data.trainable["b2"] = data.trainable["b2"] + np.float32(1)
    odtc.write_checkpoint("artifacts/checkpoint", data)
    cli("export", "artifacts/checkpoint", model, "--out", "out.onnx")
    np.testing.assert_allclose(logits("out.onnx"), logits("model.onnx") + 1, rtol=1e-5, atol=1e-6)
    graph = onnx.load("out.onnx").graph
    assert [v.name for v in graph.input] == ["x"]
    assert [v.name for v in graph.output] == ["logits"]


def test_an_inner_value_can_be_the_output(made, cli):
    cli("export", "artifacts/checkpoint", "artifacts", "--out", "out.onnx", "--output", "hidden")
    assert [v.name for v in onnx.load("out.onnx").graph.output] == ["hidden"]


def test_the_loss_is_not_an_output_for_inference(folder, cli):
    make_artifacts()
    output = cli("export", "artifacts/checkpoint", "artifacts", code=1)
    assert "only output of the evaluation model is the loss" in output
    assert "logits" in output


def test_bad_files_are_explained(trained, cli):
    assert "cannot load checkpoint" in cli("export", "none.ckpt", "model.onnx", code=1)
    assert "is not a checkpoint" in cli("export", "data.npz", "model.onnx", code=1)
    whole = pathlib.Path("run.ckpt").read_bytes()
    pathlib.Path("cut.ckpt").write_bytes(whole[:100])
    output = cli("export", "cut.ckpt", "model.onnx", code=1)
    assert "or it is damaged" in output and "comes first" not in output
    assert "export run.ckpt model.onnx" in cli("export", "model.onnx", "run.ckpt", code=1)
    assert "there is no file" in cli("export", "run.ckpt", "none.onnx", code=1)
    assert "cannot save 'no/x'" in cli("export", "run.ckpt", "model.onnx", "--out", "no/x", code=1)
    assert "--output is for artifacts" in cli(
        "export", "run.ckpt", "model.onnx", "--output", "logits", code=1
    )


def test_a_checkpoint_of_another_model_is_refused(trained, cli):
    other = classifier()
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((8, 4), np.float32), "w1"))
    del other.graph.node[1:]
    other.graph.output[0].CopyFrom(helper.make_tensor_value_info("sum", 1, ["N", 4]))
    other.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.ones(4, np.float32), "b1"))
    onnx.save(other, "other.onnx")
    assert "'w1' has shape [8, 16], in the model [8, 4]" in cli(
        "export", "run.ckpt", "other.onnx", code=1
    )
    other.graph.initializer[0].name = "weight"
    other.graph.node[0].input[1] = "weight"
    onnx.save(other, "other.onnx")
    assert "'w1', which the model has not" in cli("export", "run.ckpt", "other.onnx", code=1)


def test_a_nominal_checkpoint_has_nothing_to_export(made, cli):
    data = odtc.CheckpointData(trainable={"w1": np.zeros(0, np.float32)}, frozen={}, nominal=True)
    odtc.write_checkpoint("nominal", data)
    assert "is nominal" in cli("export", "nominal", "artifacts", code=1)


def test_nothing_that_is_read_is_overwritten(trained, cli):
    before = pathlib.Path("run.ckpt").read_bytes()
    output = cli("export", "run.ckpt", "model.onnx", "--out", "run.ckpt", code=1)
    assert "'run.ckpt' would be overwritten" in output
    assert pathlib.Path("run.ckpt").read_bytes() == before


def test_artifacts_are_not_overwritten(made, cli):
    for name in ("checkpoint", "eval_model.onnx"):
        file = pathlib.Path("artifacts") / name
        before = file.read_bytes()
        output = cli("export", "artifacts/checkpoint", "artifacts", "--out", file, code=1)
        assert "would be overwritten" in output
        assert file.read_bytes() == before
