"""One ONNX file through everything a user would do with it: run, differentiate, train, save.

python benchmarks/zoo_file.py FILE [NAME=NUMBER ...]

Prints one line of JSON: for every stage its figure, or why it failed. A stage that fails does not
keep the later ones from being tried.
"""

from __future__ import annotations

import copy
import json
import math
import pathlib
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch

from again import Again
from onnxtrain import Trainer
from onnxtrain.cli.checking.differences import Differences
from onnxtrain.cli.checking.doubles import in_type
from onnxtrain.errors import GraphError, OnnxTrainError
from onnxtrain.gradients.engine import can_carry_gradient
from onnxtrain.graph.loading.load import load_model, load_source
from onnxtrain.graph.prepare import prepare
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.drawing import draw_feeds
from onnxtrain.training.build import working_copy
from onnxtrain.transforms.patch import patched
from onnxtrain.transforms.training_graph import parameters_to_inputs, set_outputs
from onnxtrain.transforms.weights.parameters import decide
from onnxtrain.transforms.weights.whole_numbers import unpack
from onnxtrain.transforms.write_back import weight_names
from onnxtrain.types import ML, DataType
from zoo_compare import Failed, Feeds, compared, reference

STAGES = ("load", "forward", "gradient", "train", "export")
GRADIENT_BOUNDS = {DataType.DOUBLE: 1e-5, DataType.FLOAT: 3e-2}
STEPS = 3
CHECKING_SECONDS = 1800.0
"""Weights are checked one by one until so much processor time is over, and all together anyway."""
AMPLITUDES = (0.003, 0.01, 0.03, 0.1, 0.3, 3.0, 10.0)
LIVELY_TRIES = 30
RESPONSE = 1e-5
"""Inputs are changed by a hundredth, and outputs have to change by this much."""

ROUNDING = {
    "DynamicQuantizeLinear",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "QuantizeLinear",
    "Round",
}
"""Gradients pass these as if they did nothing, where differences see steps."""


class File:
    """The stages of one file, each a method of its name that gives a short text."""

    def __init__(self, path: pathlib.Path, given: Mapping[str, float]) -> None:
        self.path = path
        self.given = given
        self.reference = reference(path)
        self.feeds: Feeds = {}
        self.saved = onnx.ModelProto()

    def load(self) -> str:
        """Prepare the model, and find inputs that onnxruntime runs on."""
        model = prepare(load_model(self.path))
        types = {str(v.name): v.dtype for v in model.graph.inputs}
        given = {n: np.asarray(x, types[n].numpy()) for n, x in self.given.items()}
        drawn = draw_feeds(model, lambda f: self.reference.run(None, f), given=given)
        self.feeds = _lively(self.reference, drawn, given)
        shapes = ", ".join(f"{n} {list(a.shape)}" for n, a in self.feeds.items())
        return f"{sum(1 for _ in model.graph.all_nodes())} nodes, {shapes}"

    def forward(self) -> str:
        """Compare the outputs with onnxruntime's."""
        found = InferenceSession(self.path).run(None, self.feeds)
        want = self.reference.run(None, self.feeds)
        return f"{compared(self.path, self.feeds, want, found):.0e}"

    def gradient(self) -> str:
        """Compare the gradients of all weights with differences."""
        try:
            return self._gradient(DataType.DOUBLE)
        except GraphError as error:
            if "cannot turn" not in str(error):
                raise
            return self._gradient(DataType.FLOAT)

    def _gradient(self, dtype: DataType) -> str:
        original = load_source(self.path).model
        model = working_copy(original)
        ys = [str(v.name) for v in model.graph.outputs if can_carry_gradient(v)]
        set_outputs(model.graph, list(dict.fromkeys(ys)))
        known = weight_names(original)
        trained = [d.name for d in decide(model, known=known) if d.trained]
        unpack(model, trained)
        in_type(model, dtype)
        values = {name: model.graph.initializers[name].const_value for name in trained}
        parameters = {name: t.numpy().copy() for name, t in values.items() if t is not None}
        parameters_to_inputs(model, parameters)
        types = {str(v.name): v.dtype for v in model.graph.inputs}
        feeds = {n: a.astype(types[n].numpy()) for n, a in self.feeds.items() if n in types}
        ys = [str(v.name) for v in model.graph.outputs]
        given = {**feeds, **parameters}
        against = Differences(model, given, list(parameters), ys, seed=0, forward=Again(model))
        if any(node.op_type in ROUNDING for node in model.graph.all_nodes()):
            return f"{len(trained)} weights, straight through rounding: no differences to compare"
        return _checked(against, trained, dtype)

    def train(self) -> str:
        """Three steps of AdamW on the sum of mean squares of the float outputs."""
        trainer = Trainer(self.path, loss=mean_squares, lr=1e-4, device="cpu", seed=0)
        losses = [float(trainer.step(self.feeds)) for _ in range(STEPS)]
        values = trainer.parameters
        broken = [name for name, value in values.items() if not torch.isfinite(value).all()]
        if broken or not all(map(math.isfinite, losses)):
            raise Failed(f"not finite: losses {losses}, weights {broken[:3]}")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trained.onnx"
            trainer.save(path)
            self.saved = onnx.load(path)
        self.trainer = trainer
        return f"{len(values)} weights, {losses[0]:.4g} to {losses[-1]:.4g}"

    def export(self) -> str:
        """The saved file has the original structure, runs in onnxruntime and is another one."""
        if not self.saved.ir_version:
            raise Failed("there is no trained model")
        changed = _changed(_original(self.path), self.saved)
        session = reference(self.saved.SerializeToString())
        predicted = self.trainer.predict(self.feeds)
        values = [predicted[output.name] for output in self.reference.get_outputs()]
        found = [v.numpy() if isinstance(v, torch.Tensor) else v for v in values]
        before, after = self.reference.run(None, self.feeds), session.run(None, self.feeds)
        error = compared(self.saved, self.feeds, after, found)
        if all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
            raise Failed("the trained model gives the same outputs as the original")
        return f"{changed} tensors changed, {error:.0e}"


def _lively(
    reference: onnxruntime.InferenceSession, drawn: Feeds, given: Mapping[str, Any]
) -> Feeds:
    """Inputs to which outputs respond: a saturated Sigmoid has no gradient to train by."""
    tries = [drawn]
    for seed in range(LIVELY_TRIES):
        rng = np.random.default_rng(seed)
        tries.append(
            {
                n: (rng.choice(AMPLITUDES) * rng.permuted(a)).astype(a.dtype)
                if a.dtype.kind == "f" and a.ndim and n not in given and _is_wavy(a)
                else a
                for n, a in drawn.items()
            }
        )
    return next((feeds for feeds in tries if _responds(reference, feeds)), drawn)


def _is_wavy(array: Any) -> bool:
    """Whether numbers are measurements; ids in floating point are not scaled."""
    return not np.array_equal(array, np.round(array))


def _responds(reference: onnxruntime.InferenceSession, feeds: Feeds) -> bool:
    moved = {
        n: np.asarray(a * 1.01, a.dtype) if a.dtype.kind == "f" else a for n, a in feeds.items()
    }
    before, after = reference.run(None, feeds), reference.run(None, moved)
    changes = [
        float(np.abs(a - b).max(initial=0))
        for a, b in zip(before, after, strict=True)
        if isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.shape == b.shape
    ]
    return max(changes, default=0.0) > RESPONSE


def mean_squares(outputs: dict[str, Any], batch: Any) -> torch.Tensor:
    floats = [v for v in outputs.values() if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return torch.stack([v.float().square().mean() for v in floats]).sum()


def _checked(against: Differences, names: list[str], dtype: DataType) -> str:
    """All weights together, then one by one in random order while there is time."""
    end, found = time.process_time() + CHECKING_SECONDS, [against.check_together(2)]
    order = np.random.default_rng(0).permutation(len(names))
    for index in order:
        if time.process_time() > end:
            break
        found.append(against.check(names[index], 1))
    worst = max(found, key=lambda one: one.error)
    if not worst.error <= GRADIENT_BOUNDS[dtype]:
        shown = worst.name if len(worst.name) < 60 else "all together"
        raise Failed(
            f"gradient of {shown}: {worst.by_graph:.6g}, by difference {worst.by_difference:.6g}"
        )
    return f"{len(found) - 1} of {len(names)} weights, {worst.error:.0e} in {dtype.name.lower()}"


def _original(path: pathlib.Path) -> onnx.ModelProto:
    """A file as it is trained, with its external data: layers have weights of their own."""
    source = load_source(path)
    assert source.proto is not None
    return patched(source.proto, {}, source.files)


def _changed(before: onnx.ModelProto, after: onnx.ModelProto) -> int:
    """How many tensors differ; raises if anything else does."""
    before, after = copy.deepcopy(before), copy.deepcopy(after)
    old, new = _tensors(before), _tensors(after)
    count = sum(a.raw_data != b.raw_data for a, b in zip(old, new, strict=True))
    for tensor in (*old, *new):
        tensor.ClearField("raw_data")
    if before.SerializeToString(deterministic=True) != after.SerializeToString(deterministic=True):
        raise Failed("more than weights changed in the file")
    if not count:
        raise Failed("no tensor of the file changed")
    return count


def _tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Every tensor of a model, its value as bytes; weights in attributes are made tensors."""
    found: list[onnx.TensorProto] = []

    def walk(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
        if isinstance(graph, onnx.GraphProto):
            found.extend(graph.initializer)
        for node in graph.node:
            for attribute in node.attribute:
                if node.domain == ML or node.op_type == "Constant":
                    _made_tensor(attribute)
                if attribute.HasField("t"):
                    found.append(attribute.t)
                if attribute.HasField("g"):
                    walk(attribute.g)

    for function in model.functions:
        walk(function)
    walk(model.graph)
    for tensor in found:
        if tensor.data_type != onnx.TensorProto.STRING:
            data = onnx.numpy_helper.to_array(tensor).tobytes()
            fields = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
            for field in fields:
                tensor.ClearField(field)
            tensor.raw_data = data
    return found


def _made_tensor(attribute: onnx.AttributeProto) -> None:
    """Let an attribute of numbers hold a tensor."""
    numbers = list(attribute.floats) or ([attribute.f] if attribute.HasField("f") else [])
    if numbers:
        attribute.t.CopyFrom(onnx.numpy_helper.from_array(np.array(numbers, np.float32)))
        attribute.ClearField("floats")
        attribute.ClearField("f")


def _cure(path: pathlib.Path) -> str:
    """What onnxtrain advises for a file that onnxruntime refuses."""
    try:
        InferenceSession(path)
    except OnnxTrainError as error:
        return str(error).splitlines()[-1].strip()
    return "onnxtrain runs it"


def main() -> None:
    torch.set_num_threads(1)
    path = pathlib.Path(sys.argv[1])
    given = {n: float(x) for n, x in (text.split("=") for text in sys.argv[2:] if "=" in text)}
    result: dict[str, Any] = {}
    try:
        file = File(path, given)
    except Exception as error:
        text = str(error).replace(str(path), path.name).splitlines()[0]
        print(json.dumps({"refused": {"reason": text[:300], "cure": _cure(path)}}))
        return
    for stage in STAGES:
        start = time.monotonic()
        try:
            result[stage] = {"ok": True, "text": getattr(file, stage)()}
        except Exception as error:
            if "-v" in sys.argv:
                traceback.print_exc()
            result[stage] = {"ok": False, "text": f"{type(error).__name__}: {error}"}
        result[stage]["seconds"] = round(time.monotonic() - start, 1)
        print(json.dumps({stage: result[stage]}), flush=True)


if __name__ == "__main__":
    main()
