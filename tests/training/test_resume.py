"""Checkpoints of a Trainer: training goes on bit for bit, and misfits change nothing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from onnxtrain import Trainer
from onnxtrain.errors import CheckpointError
from onnxtrain.formats.native import read_native, write_native
from training.small import batch_of, mlp, model_of, normal

BATCHES = [batch_of(seed=seed) for seed in range(6)]


def noisy_net() -> onnx.ModelProto:
    """Batch normalisation and Dropout: everything that has a state besides the weights."""
    return model_of(
        """(float[N,4] x) => (float[N,3] y) {
            h = MatMul(x, w1)
            n = BatchNormalization(h, scale, shift, mean, var)
            d = Dropout(n, rate)
            y = MatMul(d, w2)
        }""",
        {
            "w1": normal(4, 8, seed=1),
            "scale": np.ones(8, np.float32),
            "shift": np.zeros(8, np.float32),
            "mean": np.zeros(8, np.float32),
            "var": np.ones(8, np.float32),
            "rate": np.float32(0.5),
            "w2": normal(8, 3, seed=2),
        },
    )


def trainer_of(model: onnx.ModelProto | None = None, **options) -> Trainer:
    given = {"loss": "cross_entropy", "device": "cpu", "seed": 0}
    return Trainer(model or noisy_net(), **{**given, **options})


def everything(trainer: Trainer) -> dict[str, np.ndarray]:
    live = {name: parameter.data for name, parameter in trainer.state.parameters}
    for name, moments in trainer.optimizer.state.moments.items():
        live.update({f"{name}/{key}": t.numpy().copy() for key, t in moments.items()})
    live["rng"] = trainer.module.runner(training=True).program.rng.get_state().numpy()
    live["numbers"] = np.array([trainer.steps, trainer.lr])
    return live


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_training_goes_on_bit_for_bit(optimizer, tmp_path):
    whole = trainer_of(optimizer=optimizer)
    for batch in BATCHES[:3]:
        whole.step(batch)
    whole.lr = 0.0123
    whole.checkpoint(tmp_path / "here", extra={"epoch": 3, "best": [0.1, None]})
    again = trainer_of(optimizer=optimizer, seed=99, lr=1.0)
    assert again.resume(tmp_path / "here") == {"epoch": 3, "best": [0.1, None]}
    assert again.steps == 3 and again.lr == 0.0123
    assert_same(everything(again), everything(whole))
    for batch in BATCHES[3:]:
        assert float(again.step(batch)) == float(whole.step(batch))
    assert_same(everything(again), everything(whole))


def test_a_torch_loss_resumes_too(tmp_path):
    def loss(outputs, batch):
        return torch.nn.functional.cross_entropy(outputs["y"], batch["labels"])

    whole, again = trainer_of(loss=loss), trainer_of(loss=loss, seed=5)
    whole.step(BATCHES[0])
    whole.checkpoint(str(tmp_path / "here"))
    assert again.resume(str(tmp_path / "here")) == {}
    assert float(again.step(BATCHES[1])) == float(whole.step(BATCHES[1]))


def test_going_back_to_an_earlier_checkpoint(tmp_path):
    trainer = trainer_of()
    trainer.step(BATCHES[0])
    trainer.checkpoint(tmp_path / "here")
    first = [float(trainer.step(batch)) for batch in BATCHES[1:]]
    trainer.resume(tmp_path / "here")
    assert [float(trainer.step(batch)) for batch in BATCHES[1:]] == first


def test_a_checkpoint_replaces_the_one_before(tmp_path):
    trainer = trainer_of()
    for extra in (1, 2):
        trainer.checkpoint(tmp_path / "here", extra={"count": extra})
    assert trainer.resume(tmp_path / "here") == {"count": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_frozen_weights_are_not_in_the_checkpoint(tmp_path):
    trainer = trainer_of(trainable=["w2"], batch_norm="freeze")
    trainer.checkpoint(tmp_path / "here")
    tensors, _ = read_native(tmp_path / "here")
    assert {key for key in tensors if key.startswith("param/")} == {"param/w2"}


def test_statistics_are_in_the_checkpoint(tmp_path):
    trainer_of(trainable=["w2"]).checkpoint(tmp_path / "here")
    tensors, _ = read_native(tmp_path / "here")
    kept = {key for key in tensors if key.startswith("param/")}
    assert kept == {"param/w2", "param/mean", "param/var"}


def other_names() -> onnx.ModelProto:
    model = noisy_net()
    model.graph.initializer[0].name = "w1b"
    model.graph.node[0].input[1] = "w1b"
    return model


def other_shape() -> onnx.ModelProto:
    model = noisy_net()
    (last,) = (t for t in model.graph.initializer if t.name == "w2")
    last.CopyFrom(onnx.numpy_helper.from_array(normal(8, 2), "w2"))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 2
    return model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": other_names()}, "belongs to another model: it has 'w1' that the trainer"),
        ({"model": other_shape()}, r"another model: 'w2' is float32 \[8, 3\] in it, .* \[8, 2\]"),
        ({"model": mlp()}, "belongs to another model: it has 'mean', 'scale', 'shift', 'var' and"),
        ({"optimizer": "sgd"}, "another optimizer: it has 'scale/momentum1', "),
        ({"optimizer": "lamb"}, "another optimizer: AdamWOptimizer, not LambOptimizer"),
        ({"trainable": ["w1"]}, "belongs to another model: it has 'scale', 'shift', 'w2' that"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused_and_nothing_changes(
    options, message, tmp_path
):
    whole = trainer_of()
    whole.step(BATCHES[0])
    whole.checkpoint(tmp_path / "here")
    other = trainer_of(**options)
    before = everything(other)
    with pytest.raises(CheckpointError, match=message) as caught:
        other.resume(tmp_path / "here")
    assert str(tmp_path / "here") in str(caught.value)
    assert_same(everything(other), before)


@pytest.mark.parametrize("key", ["step", "learning_rate", "extra"])
def test_what_is_told_beside_the_values_is_checked_too(key, tmp_path):
    whole = trainer_of()
    whole.step(BATCHES[0])
    whole.checkpoint(tmp_path / "here", {"epoch": 1, 2: (3, 4)})
    assert trainer_of().resume(tmp_path / "here") == {"epoch": 1, "2": [3, 4]}
    tensors, manifest = read_native(tmp_path / "here")
    changed = {"step": 9, "learning_rate": 0.5, "extra": {"epoch": 2}}
    write_native(tmp_path / "here", tensors, {**manifest, key: changed[key]})
    other = trainer_of()
    before = everything(other)
    with pytest.raises(CheckpointError, match="is damaged: its values are not those"):
        other.resume(tmp_path / "here")
    assert_same(everything(other), before)


def test_checkpoints_of_earlier_versions_are_read(tmp_path):
    whole = trainer_of()
    whole.step(BATCHES[0])
    whole.checkpoint(tmp_path / "here")
    tensors, manifest = read_native(tmp_path / "here")
    for key in ("optimizer", "crc32", "manifest_crc32"):
        del manifest[key]
    write_native(tmp_path / "here", tensors, manifest)
    other = trainer_of()
    other.resume(tmp_path / "here")
    assert_same(everything(other), everything(whole))


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path):
    trainer_of(trainable=["w1"]).checkpoint(tmp_path / "here")
    with pytest.raises(CheckpointError, match="it lacks 'scale', 'shift', 'w2'"):
        trainer_of().resume(tmp_path / "here")


@pytest.mark.parametrize("lost", ["rng/step", "rng/host", "step", "learning_rate"])
def test_a_checkpoint_with_parts_missing_is_refused_and_nothing_changes(lost, tmp_path):
    whole = trainer_of()
    whole.step(BATCHES[0])
    whole.checkpoint(tmp_path / "here")
    tensors, manifest = read_native(tmp_path / "here")
    tensors.pop(lost, None)
    manifest.pop(lost, None)
    write_native(tmp_path / "part", tensors, manifest)
    other = trainer_of()
    before = everything(other)
    with pytest.raises(CheckpointError, match="is damaged"):
        other.resume(tmp_path / "part")
    assert_same(everything(other), before)


def test_extra_values_that_json_cannot_hold_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(CheckpointError, match="cannot save checkpoint"):
        trainer_of().checkpoint(tmp_path / "here", extra={"set": {1}})
    assert not list(tmp_path.iterdir())
