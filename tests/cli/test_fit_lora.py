"""``fit --lora``: adapters instead of weights."""

import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from cli.small import samples
from onnxtrain import Trainer
from onnxtrain.cli.fitting.adapters import lora_of
from onnxtrain.errors import OnnxTrainError, OptionError
from onnxtrain.formats.adapter import read_adapter
from onnxtrain.graph.loading.load import load_source
from onnxtrain.training.adapters import config_of
from onnxtrain.transforms.lora import LoraConfig

FIT = ("fit", "model.onnx", "--data", "data.npz", "--loss", "cross_entropy", "--device", "cpu")


def weights(path: str) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_adapters_are_merged_into_the_weights(folder, cli):
    cli(*FIT, "--steps", "3", "--lora", "2")
    before, after = weights("model.onnx"), weights("trained.onnx")
    assert list(before) == list(after)
    assert {n for n in before if not np.array_equal(before[n], after[n])} == {"w1", "w2"}


def test_adapters_are_written_beside_the_model_that_takes_them(folder, cli):
    options = ("--steps", "3", "--lora", "rank=2,alpha=4,targets=w2|first", "--lr", "0.05")
    told = cli(*FIT, *options, "--out", "small.onnx_adapter")
    assert "wrote small.onnx_adapter" in told and "wrote small.onnx" in told
    cli(*FIT, *options)
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    adapter = onnxruntime.LoraAdapter()
    adapter.Load("small.onnx_adapter")
    run_options = onnxruntime.RunOptions()
    run_options.add_active_adapter(adapter)
    feeds = {"x": samples()["x"]}
    adapted = onnxruntime.InferenceSession("small.onnx", quiet).run(None, feeds, run_options)
    merged = onnxruntime.InferenceSession("trained.onnx", quiet).run(None, feeds)
    np.testing.assert_allclose(adapted[0], merged[0], rtol=1e-4, atol=1e-5)


LORA = ("--lora", "rank=2,alpha=4", "--steps", "4", "--lr", "0.05", "--checkpoint", "run.ckpt")


def test_a_checkpoint_without_adapters_that_the_loss_does_not_need(folder, cli):
    model = onnx.load("model.onnx")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 2), np.float32), "w3"))
    model.graph.node.append(helper.make_node("MatMul", ["x", "w3"], ["second"]))
    model.graph.output.append(helper.make_tensor_value_info("second", 1, ["N", 2]))
    onnx.save(model, "model.onnx")
    cli(*FIT, *LORA, "--out", "merged.onnx")
    cli("export", "run.ckpt", "model.onnx", "--out", "out.onnx")
    assert pathlib.Path("out.onnx").read_bytes() == pathlib.Path("merged.onnx").read_bytes()


def test_a_checkpoint_of_adapters_becomes_what_fit_writes(folder, cli):
    cli(*FIT, *LORA, "--out", "merged.onnx")
    assert "wrote out.onnx" in cli("export", "run.ckpt", "model.onnx", "--out", "out.onnx")
    assert pathlib.Path("out.onnx").read_bytes() == pathlib.Path("merged.onnx").read_bytes()
    pathlib.Path("run.ckpt").unlink()
    cli(*FIT, *LORA, "--out", "fit.onnx_adapter")
    told = cli("export", "run.ckpt", "model.onnx", "--out", "out.onnx_adapter")
    assert "wrote out.onnx_adapter" in told and "wrote out.onnx\n" in told
    for kind in ("onnx_adapter", "onnx"):
        one, other = (pathlib.Path(f"{name}.{kind}").read_bytes() for name in ("fit", "out"))
        assert one == other


def test_a_checkpoint_without_adapters_gives_no_adapter_file(folder, cli):
    cli(*FIT, "--steps", "1", "--checkpoint", "run.ckpt")
    told = cli("export", "run.ckpt", "model.onnx", "--out", "a.onnx_adapter", code=1)
    assert "has no adapters" in told and "name an .onnx file" in told


def test_training_goes_on_from_an_adapter(folder, cli):
    """Plain SGD has no other state: four steps and four steps are eight."""
    plain = (*FIT, "--optimizer", "sgd", "--lr", "0.1", "--batch-size", "64", "--no-dropout")
    lora = ("--lora", "rank=2,alpha=4,targets=w2")
    cli(*plain, *lora, "--steps", "8", "--out", "eight.onnx")
    cli(*plain, *lora, "--steps", "4", "--out", "four.onnx_adapter")
    cli(*plain, *lora, "--adapter", "four.onnx_adapter", "--steps", "4", "--out", "both.onnx")
    one, other = weights("eight.onnx"), weights("both.onnx")
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)
    assert not np.allclose(one["w2"], weights("model.onnx")["w2"])


@pytest.mark.parametrize(
    ("rank", "message"), [(2**31, "below 2**31, not"), (2**31 - 1, "there is not enough memory")]
)
def test_ranks_that_memory_cannot_hold_are_refused(folder, cli, monkeypatch, rank, message):
    def full(*args, **options):
        raise MemoryError("Unable to allocate 24.0 TiB")

    monkeypatch.setattr("onnxtrain.training.adapters.initial_values", full)
    assert message in cli(*FIT, "--lora", rank, "--steps", "1", code=1)


def test_an_adapter_tells_its_own_rank_and_layers(folder, cli):
    cli(*FIT, "--lora", "rank=3,targets=w2", "--steps", "2", "--out", "small.onnx_adapter")
    cli(*FIT, "--adapter", "small.onnx_adapter", "--steps", "2", "--out", "more.onnx_adapter")
    before, after = (read_adapter(f"{name}.onnx_adapter") for name in ("small", "more"))
    assert {n: a.shape for n, a in before.items()} == {n: a.shape for n, a in after.items()}
    assert list(before) == ["w2.lora_A", "w2.lora_B"]


def test_other_adapters_are_refused(folder, cli):
    cli(*FIT, "--lora", "rank=3,targets=w2", "--steps", "1", "--out", "small.onnx_adapter")
    other = (*FIT, "--steps", "1", "--adapter", "small.onnx_adapter", "--lora")
    assert "is of another rank or model" in cli(*other, "rank=2,targets=w2", code=1)
    assert "it lacks 'w1.lora_A'" in cli(*other, "3", code=1)
    told = cli(*FIT, "--steps", "1", "--adapter", "data.npz", code=1)
    assert "data.npz" in told and "not an adapter file" in told
    trainer = Trainer("model.onnx", loss="cross_entropy", device="cpu")
    with pytest.raises(OptionError, match="no adapters to load"):
        trainer.load_adapter("small.onnx_adapter")


def test_a_convolution_tells_its_rank_too(tmp_path):
    """Groups multiply the rows of A, not the rank."""
    weight = numpy_helper.from_array(np.ones((4, 2, 3, 3), np.float32), "w")
    shape = helper.make_tensor_value_info("x", 1, ["N", 4, 5, 5])
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv", group=2)]
    out = helper.make_tensor_value_info("y", 1, ["N", 4, 3, 3])
    graph = helper.make_graph(nodes, "conv", [shape], [out], [weight])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    trainer = Trainer(model, loss="mse", lora=LoraConfig(rank=3), device="cpu", seed=0)
    trainer.save_adapter(tmp_path / "a.onnx_adapter")
    config = config_of(load_source(model), tmp_path / "a.onnx_adapter")
    assert (config.rank, config.targets) == (3, ["w"])
    again = Trainer(model, loss="mse", lora=config, device="cpu", seed=1)
    again.load_adapter(tmp_path / "a.onnx_adapter")
    for name, value in trainer.parameters.items():
        np.testing.assert_array_equal(value.numpy(), again.parameters[name].numpy())


def test_the_model_that_takes_adapters_does_not_replace_the_original(folder, cli):
    before = pathlib.Path("model.onnx").read_bytes()
    run = (*FIT, "--lora", "2", "--steps", "1", "--checkpoint", "run.ckpt")
    assert "'model.onnx' would be overwritten" in cli(*run, "--out", "model.onnx_adapter", code=1)
    cli(*run, "--out", "a.onnx_adapter", "--report", "run.html")
    assert "adapters alone" in pathlib.Path("run.html").read_text()
    told = cli("export", "run.ckpt", "model.onnx", "--out", "model.onnx_adapter", code=1)
    assert "'model.onnx' would be overwritten" in told
    assert pathlib.Path("model.onnx").read_bytes() == before


def test_an_adapter_file_needs_adapters(folder, cli):
    cli(*FIT, "--steps", "1", "--out", "small.onnx_adapter", code=1)
    assert not list(folder.glob("small*"))


def test_settings_are_read():
    config = lora_of("rank=4, alpha=8,dropout=0.25,targets=*q*|*v*")
    assert config is not None
    assert (config.rank, config.alpha, config.dropout) == (4, 8.0, 0.25)
    assert config.targets == ["*q*", "*v*"]
    assert lora_of(None) is None


@pytest.mark.parametrize("text", ["many", "rank=two", "size=3", "4,alpha"])
def test_other_settings_are_refused(text: str):
    with pytest.raises(OnnxTrainError, match="--lora does not understand"):
        lora_of(text)
