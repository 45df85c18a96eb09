"""The memory of a step, told beforehand and measured."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from cli.small import classifier
from onnxtrain import Trainer
from onnxtrain.cli.footprint import _squares, footprint, of_trainer

WEIGHTS = {
    "w": (16, 3, 3, 3),
    "s": (16,),
    "b": (16,),
    "m": (16,),
    "v": (16,),
    "head": (16 * 8 * 8, 10),
}
CONV = """<ir_version: 8, opset_import: ["": 17]> images (float[N,3,16,16] x) => (float[N,10] y) {
    c = Conv<pads=[1,1,1,1]>(x, w)
    n = BatchNormalization(c, s, b, m, v)
    r = Relu(n)
    p = AveragePool<kernel_shape=[2,2], strides=[2,2]>(r)
    f = Flatten(p)
    y = MatMul(f, head)
}"""


def convolution() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(CONV)
    rng = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        array = rng.uniform(0.1, 0.2, shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def measured(trainer: Trainer, batch: dict[str, torch.Tensor]) -> int:
    """The most bytes that torch held at once for what a step computed."""
    trainer.gradients(batch)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        trainer.gradients(batch)
    events = record.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    assert changes
    return int(np.cumsum([size for _, size in sorted(changes)]).max())


@pytest.mark.parametrize("less", [{}, {"recompute": "cheap"}, {"compress": "exact"}], ids=str)
@pytest.mark.parametrize("size", [8, 64])
def test_what_is_told_is_what_is_measured(size: int, less: dict[str, str]):
    """Up to the working memory of the largest kernel: the unfolded images of a convolution."""
    batch = {"x": torch.rand(size, 3, 16, 16), "labels": torch.zeros(size, dtype=torch.int64)}
    proto = convolution()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = size
    trainer = Trainer(proto, loss="cross_entropy", device="cpu", **less)
    told, found = of_trainer(trainer), measured(trainer, batch)
    assert told.unknown == 0
    assert told.activations <= found <= 1.25 * told.activations


def test_what_the_file_says_of_values_inside_is_followed():
    """An exporter writes the batch's name into all of them; not all can be told from the nodes."""
    text = CONV.replace("r = Relu(n)", "q = Reshape(n, sizes) r = Relu(q)")
    proto = onnx.parser.parse_model(text.replace("] x)", "] x, int64[4] sizes)"))
    proto.graph.initializer.extend(convolution().graph.initializer)
    assert footprint(proto, 64).unknown
    said = [onnx.helper.make_tensor_value_info(v, 1, ["N", 16, 16, 16]) for v in ("q", "r")]
    proto.graph.value_info.extend(said)
    told, usual = footprint(proto, 64), footprint(convolution(), 64)
    assert not told.unknown and told.activations >= usual.activations


def test_parts_add_up():
    told = footprint(convolution(), 4)
    elements = {name: int(np.prod(shape)) for name, shape in WEIGHTS.items()}
    trained = 4 * sum(elements[name] for name in ("w", "s", "b", "head"))
    assert told.gradients == trained
    assert told.moments == 2 * trained
    assert 0 <= told.parameters - 4 * sum(elements.values()) < 256
    assert told.total == told.parameters + 3 * trained + told.activations


def test_activations_grow_with_the_batch():
    small, large = (footprint(classifier(), size).activations for size in (1000, 10000))
    assert large == pytest.approx(10 * small, rel=0.02)


def test_less_is_what_other_trainers_need():
    proto, told = convolution(), footprint(convolution(), 64)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 64
    assert len(told.less) == 4
    for option, activations in told.less.items():
        name, word = option.removeprefix("--").split()
        trainer = Trainer(proto, loss=_squares, device="cpu", **{name: word})
        assert of_trainer(trainer).activations == activations
    assert told.less["--compress pack8"] < told.less["--compress exact"] < told.activations


def test_info_tells_it(folder, cli):
    told = footprint("model.onnx", 32)
    text = cli("info", "model.onnx", "--batch-size", "32")
    (line,) = [line for line in text.splitlines() if line.startswith("memory of a step")]
    assert "32 samples" in line and f"{told.total / 2**20:,.1f} MiB" in line
    assert "memory" not in cli("info", "model.onnx")
    message = f"a batch cannot have {2**63} samples"
    assert message in cli("info", "model.onnx", "--batch-size", 2**63, code=1)
    onnx.save(convolution(), "deep.onnx")
    text = cli("info", "deep.onnx", "--batch-size", "64")
    (line,) = [line for line in text.splitlines() if line.startswith("activations could be")]
    assert re.search(r"[\d.]+ MiB with --recompute cheap, [\d.]+ MiB with --recompute layers", line)
