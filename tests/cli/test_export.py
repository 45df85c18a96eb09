import pathlib

import numpy as np
import onnx
import onnx.parser
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


def branches() -> onnx.ModelProto:
    """A classifier with weights in the bodies of a node."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        branches (float[N,8] x) => (float[N,8] logits) {
            sum = ReduceSum<keepdims=0>(x)
            zero = Constant<value_float=0.0>()
            above = Greater(sum, zero)
            logits = If(above) <
                then_branch = yes () => (float[N,8] p) {
                    w = Constant<value_floats=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]>()
                    p = Mul(x, w)
                },
                else_branch = no () => (float[N,8] q)
                    <float[8] v = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}> { q = Add(x, v) }
            >
        }"""
    )


def linear() -> onnx.ModelProto:
    """A classifier with its weights in attributes."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
        linear (float[N,8] x) => (float[N,3] logits) {
            logits = ai.onnx.ml.LinearRegressor<targets=3, intercepts=[0.1, 0.2, 0.3]>(x)
        }"""
    )
    numbers = np.linspace(-1, 1, 24)
    model.graph.node[0].attribute.append(helper.make_attribute("coefficients", numbers))
    return model


def whole_numbers() -> onnx.ModelProto:
    """A classifier with a weight of whole numbers that an operator for them takes."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        whole (float[N,8] x) => (float[N,3] logits) {
            q, scale, zero = DynamicQuantizeLinear(x)
            sum = MatMulInteger(q, w, zero)
            number = Cast<to=1>(sum)
            both = Mul(scale, w_scale)
            logits = Mul(number, both)
        }"""
    )
    weight = np.random.default_rng(0).integers(-100, 100, (8, 3)).astype(np.int8)
    for name, array in (("w", weight), ("w_scale", np.float32(0.01))):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


@pytest.mark.parametrize("model", [branches, linear, whole_numbers])
def test_weights_that_are_no_initializers_of_the_file(model, folder, cli):
    onnx.save(model(), "model.onnx")
    cli(*FIT, "--steps", 3, "--lr", 0.05, "--checkpoint", "run.ckpt", "--out", "fit.onnx")
    cli("export", "run.ckpt", "model.onnx", "--out", "out.onnx")
    assert pathlib.Path("out.onnx").read_bytes() == pathlib.Path("fit.onnx").read_bytes()
    assert (logits("out.onnx") != logits("model.onnx")).any()


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


@pytest.mark.parametrize("kind", ["native", "artifacts"])
def test_external_data_that_is_read_is_not_overwritten(kind, trained, made, cli):
    checkpoint, path = {
        "native": ("run.ckpt", "model.onnx"),
        "artifacts": ("artifacts/checkpoint", "artifacts/eval_model.onnx"),
    }[kind]
    target = pathlib.Path(path).with_name("weights.bin")
    outside = {"save_as_external_data": True, "location": target.name, "size_threshold": 0}
    onnx.save(onnx.load(path), path, **outside)
    before = target.read_bytes()
    output = cli("export", checkpoint, path, "--out", target, code=1)
    assert "weights.bin' would be overwritten" in output
    assert target.read_bytes() == before


def test_artifacts_want_their_evaluation_model(made, cli):
    line = ("export", "artifacts/checkpoint")
    output = cli(*line, "artifacts/training_model.onnx", code=1)
    assert "is a training model" in output and "give the evaluation model" in output
    output = cli(*line, "model.onnx", code=1)
    assert "weights of its own, say 'w1'" in output and "give the evaluation model" in output
    assert not pathlib.Path("trained.onnx").exists()


def test_artifacts_are_not_overwritten(made, cli):
    for name in ("checkpoint", "eval_model.onnx"):
        file = pathlib.Path("artifacts") / name
        before = file.read_bytes()
        output = cli("export", "artifacts/checkpoint", "artifacts", "--out", file, code=1)
        assert "would be overwritten" in output
        assert file.read_bytes() == before
