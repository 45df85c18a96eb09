"""What tests of bad input share: how an error must read, and ways to load a model."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtrain import InferenceSession, Trainer, artifacts, errors
from onnxtrain.api import CheckpointState, Module
from training.small import normal

RAW = (
    "protobuf",
    "cpp2py",
    "ShapeInferenceError",
    "TypeInferenceError",
    "ValidationError",
    "google",
    "flatbuffers",
    "Errno",
)
"""What the insides of other packages would write."""


@contextmanager
def refused(kind: type[errors.OnnxTrainError], *words: str) -> Iterator[None]:
    """The error is of this very class, has these words, and speaks in the style of the package."""
    with pytest.raises(kind) as caught:
        yield
    assert type(caught.value) is kind
    message = str(caught.value)
    for word in words:
        assert word in message, message
    first = message.splitlines()[0]
    assert not any(word in message for word in RAW), message
    assert (first[0].islower() or first[0] in "'") and not first.endswith("."), message


def train(model, **options) -> Trainer:
    return Trainer(model, **{"loss": "cross_entropy", "device": "cpu", **options})


def generate(model, folder: pathlib.Path, **options) -> None:
    given = {"requires_grad": ["fc1.bias"], "loss": artifacts.LossType.CrossEntropyLoss}
    artifacts.generate_artifacts(model, artifact_directory=folder, **{**given, **options})


def module_of(path) -> Module:
    return Module(path, CheckpointState({}))


LOADERS: dict[str, Callable] = {"session": InferenceSession, "trainer": train, "module": module_of}
LOADED = pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS.keys())


def chain(*nodes: onnx.NodeProto, domains=()) -> onnx.ModelProto:
    """A product with the weight ``fc1.bias`` and what follows, unchecked."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "fc1.bias"], ["m"], name="times"), *nodes],
        "chain",
        [info("x", TensorProto.FLOAT, ["N", 3])],
        [info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(normal(3), "fc1.bias")],
    )
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
