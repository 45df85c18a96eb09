"""``fit --lora``: adapters instead of weights."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from cli.small import samples
from onnxtrain.cli.adapters import lora_of
from onnxtrain.errors import OnnxTrainError

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
