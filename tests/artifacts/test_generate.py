"""generate_artifacts: names of losses and optimizers, arguments, and what it refuses."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxtrain import artifacts, onnxblock
from onnxtrain.api import CheckpointState
from onnxtrain.errors import ParameterError
from training.small import batch_of, load_module, mlp, model_of, normal, write_artifacts

FILES = ["checkpoint", "eval_model.onnx", "optimizer_model.onnx", "training_model.onnx"]
OUTPUTS = {"ContrastiveLoss": 2, "CosineEmbeddingLoss": 2, "InfoNCELoss": 2, "TripletMarginLoss": 3}


def test_numbers_of_the_reference():
    reference = {"MSELoss": 1, "CrossEntropyLoss": 2, "BCEWithLogitsLoss": 3, "L1Loss": 4}
    assert reference.items() <= {kind.name: kind.value for kind in artifacts.LossType}.items()
    assert (artifacts.OptimType.AdamW.value, artifacts.OptimType.SGD.value) == (1, 2)


def heads(count: int, rank: int) -> onnx.ModelProto:
    """A model with so many outputs, whose parameters are ``w0``, ``w1``, ..."""
    axes = "T,N" if rank == 3 else "N"
    outputs = ", ".join(f"float[{axes},3] y{i}" for i in range(count))
    nodes = "\n".join(f"y{i} = MatMul(x, w{i})" for i in range(count))
    body = f"(float[{axes},4] x) => ({outputs}) {{ {nodes} }}"
    return model_of(body, {f"w{i}": normal(4, 3, seed=i) for i in range(count)})


@pytest.mark.parametrize("kind", artifacts.LossType)
def test_every_loss_by_name(kind, tmp_path):
    count = OUTPUTS.get(kind.name, 1)
    model = heads(count, rank=3 if kind.name == "CTCLoss" else 2)
    artifacts.generate_artifacts(
        model,
        requires_grad=[f"w{i}" for i in range(count)],
        loss=kind,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES
    training = onnx.load(tmp_path / "training_model.onnx")
    assert training.graph.input[-1].name == "lazy_reset_grad"
    assert not training.graph.output[0].type.tensor_type.shape.dim


def test_a_loss_of_some_outputs_only(tmp_path):
    artifacts.generate_artifacts(
        heads(3, 2),
        requires_grad=["w1"],
        loss=artifacts.LossType.MSELoss,
        loss_input_names=["y1"],
        additional_output_names=["y2"],
        artifact_directory=tmp_path,
        prefix="my_",
        nominal_checkpoint=True,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "my_checkpoint",
        "my_eval_model.onnx",
        "my_nominal_checkpoint",
        "my_training_model.onnx",
    ]
    graph = onnx.load(tmp_path / "my_training_model.onnx").graph
    assert [value.name for value in graph.output][1:] == ["y2", "w1_grad.accumulation.out"]
    assert CheckpointState.load_checkpoint(tmp_path / "my_nominal_checkpoint").parameters.nominal


def test_a_loss_written_by_hand(tmp_path):
    class Cubed(onnxblock.Block):
        def build(self, output, target="wanted"):
            target = onnxblock.blocks.InputLike(output)(target)
            distance = onnxblock.blocks.Abs()(onnxblock.blocks.Sub()(output, target))
            return onnxblock.blocks.ReduceMean(keepdims=False)(onnxblock.blocks.Pow(3.0)(distance))

    folder = write_artifacts(tmp_path, loss=Cubed())
    module = load_module(folder)
    assert module.input_names() == ["x", "wanted"]
    x, wanted = batch_of()["x"], normal(6, 3, seed=4)
    value, y = module(x, wanted)
    np.testing.assert_allclose(value, (np.abs(y - wanted) ** 3).mean(), rtol=1e-5)


def test_an_input_cannot_be_trained(tmp_path):
    with pytest.raises(ParameterError, match="cannot train 'x': an input has no value"):
        artifacts.generate_artifacts(
            mlp(),
            requires_grad=["fc1.weight", "x"],
            loss=artifacts.LossType.CrossEntropyLoss,
            artifact_directory=tmp_path,
        )
    assert not list(tmp_path.iterdir())


def test_unknown_kinds_are_refused_before_anything_is_written(tmp_path):
    for options, error in (({"loss": "mse"}, RuntimeError), ({"optimizer": "sgd"}, TypeError)):
        with pytest.raises(error, match="unknown"):
            write_artifacts(tmp_path, **options)
    assert not list(tmp_path.iterdir())
