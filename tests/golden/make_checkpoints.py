r"""Make the checkpoints of ``tests/golden/checkpoints`` with the reference runtime.

Needs an environment of its own with onnxruntime-training-cpu 1.19.2 (and onnx 1.16, numpy 1)::

    python tests/golden/make_checkpoints.py

By itself the reference moves values to a data file from 1.8 GB on. To get a small
``external.ckpt`` that it wrote, first split a checkpoint in onnxtrain's own environment, then give
the name of the result to this script::

    python -c "from onnxtrain.formats import odtc as o; o.write_checkpoint('split.ckpt', \
        o.read_checkpoint('tests/golden/checkpoints/artifacts.ckpt'), external_threshold=0)"
    python tests/golden/make_checkpoints.py split.ckpt

Each ``NAME.ckpt`` gets a ``NAME.npz`` beside it with what the checkpoint must hold, taken from the
model, from the reference's Python API, or (for the moments of the optimizer, which the API hides)
from the gradients of every step.
Keys: ``trainable/P``, ``frozen/P``, ``moment/P/momentumK``, ``step``, ``property/P``.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.training import artifacts, onnxblock
from onnxruntime.training.api import CheckpointState, Module, Optimizer

FOLDER = pathlib.Path(__file__).parent / "checkpoints"
FROZEN = ["fc2.bias"]
TRAINABLE = ["fc1.weight", "fc1.bias", "fc2.weight"]
PROPERTIES = {"epoch": 7, "best": -(2**40), "accuracy": 0.875, "tag": "größer als zuvor"}
STEPS = 3
BETA1, BETA2 = float(np.float32(0.9)), float(np.float32(0.999))


def two_layers() -> onnx.ModelProto:
    """A 4-8-3 perceptron with relu."""
    rng = np.random.default_rng(0)
    shapes = {"fc1.weight": (4, 8), "fc1.bias": (8,), "fc2.weight": (8, 3), "fc2.bias": (3,)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("Gemm", ["a", "fc2.weight", "fc2.bias"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "two_layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def save_expected(name: str, values: dict[str, object]) -> None:
    """Write what ``NAME.ckpt`` must hold."""
    np.savez_compressed(FOLDER / f"{name}.npz", **{k: np.asarray(v) for k, v in values.items()})


def parameters_of(state: CheckpointState) -> dict[str, object]:
    """The parameters of a state by the keys of the expected values."""
    return {
        f"{'trainable' if p.requires_grad else 'frozen'}/{name}": np.array(p.data)
        for name, p in state.parameters
    }


def generate(folder: pathlib.Path, optimizer: artifacts.OptimType) -> None:
    """Write the training artifacts of the perceptron."""
    artifacts.generate_artifacts(
        two_layers(),
        requires_grad=TRAINABLE,
        frozen_params=FROZEN,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=optimizer,
        artifact_directory=str(folder),
        nominal_checkpoint=True,
    )


def train(folder: pathlib.Path, state: CheckpointState) -> dict[str, list[np.ndarray]]:
    """Train ``STEPS`` steps; returns the gradients of each parameter by step."""
    rng = np.random.default_rng(1)
    module = Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(0.01)
    gradients: dict[str, list[np.ndarray]] = {name: [] for name in TRAINABLE}
    module.train()
    for _ in range(STEPS):
        module(rng.normal(size=(5, 4)).astype(np.float32), rng.integers(0, 3, size=5))
        for name in TRAINABLE:
            gradients[name].append(np.array(state.parameters[name].grad, dtype=np.float64))
        optimizer.step()
        module.lazy_reset_grad()
    return gradients


def adam_moments(gradients: dict[str, list[np.ndarray]]) -> dict[str, object]:
    """First and second moments after all steps, in float64."""
    moments: dict[str, object] = {}
    for name, steps in gradients.items():
        first = second = np.zeros_like(steps[0])
        for g in steps:
            first = BETA1 * first + (1 - BETA1) * g
            second = BETA2 * second + (1 - BETA2) * g * g
        moments[f"moment/{name}/momentum0"] = first
        moments[f"moment/{name}/momentum1"] = second
    return moments


def make_artifacts(folder: pathlib.Path) -> None:
    """``artifacts.ckpt`` and ``nominal.ckpt``: as generated, before any training."""
    weights = {w.name: numpy_helper.to_array(w) for w in two_layers().graph.initializer}
    expected = {f"trainable/{name}": weights[name] for name in TRAINABLE}
    expected |= {f"frozen/{name}": weights[name] for name in FROZEN}
    (FOLDER / "artifacts.ckpt").write_bytes((folder / "checkpoint").read_bytes())
    save_expected("artifacts", expected)
    (FOLDER / "nominal.ckpt").write_bytes((folder / "nominal_checkpoint").read_bytes())
    save_expected("nominal", {name: value[:0].ravel() for name, value in expected.items()})


def make_adamw(folder: pathlib.Path) -> None:
    """``adamw.ckpt``: trained, with optimizer state and properties; ``saved.ckpt``: without."""
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    gradients = train(folder, state)
    CheckpointState.save_checkpoint(state, str(FOLDER / "saved.ckpt"))
    save_expected("saved", parameters_of(state))
    for name, value in PROPERTIES.items():
        state.properties[name] = value
    CheckpointState.save_checkpoint(state, str(FOLDER / "adamw.ckpt"), include_optimizer_state=True)
    properties = {f"property/{name}": value for name, value in PROPERTIES.items()}
    expected = parameters_of(state) | adam_moments(gradients) | {"step": STEPS} | properties
    save_expected("adamw", expected)


def make_sgd(folder: pathlib.Path) -> None:
    """``sgd.ckpt``: trained, with the (zero) momentum that the optimizer keeps."""
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    train(folder, state)
    CheckpointState.save_checkpoint(state, str(FOLDER / "sgd.ckpt"), include_optimizer_state=True)
    moments = {
        f"moment/{name}/momentum0": np.zeros_like(state.parameters[name].data) for name in TRAINABLE
    }
    save_expected("sgd", parameters_of(state) | moments | {"step": STEPS})


def make_external(folder: pathlib.Path, split: str) -> None:
    """``external.ckpt``: a state that was loaded with a data file is saved with one."""
    state = CheckpointState.load_checkpoint(split)
    gradients = train(folder, state)
    path = FOLDER / "external.ckpt"
    CheckpointState.save_checkpoint(state, str(path), include_optimizer_state=True)
    save_expected("external", parameters_of(state) | adam_moments(gradients) | {"step": STEPS})


def make_types() -> None:
    """``types.ckpt``: frozen parameters of every element type that a NumPy file can hold."""
    integers = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    types = ["float64", "float16", *integers, "bool"]
    values = {name: np.arange(6).reshape(2, 3).astype(name) for name in types}
    values["scalar"] = np.array(2.5, dtype=np.float32)
    values["empty"] = np.zeros((0, 4), dtype=np.float32)
    tensors = [numpy_helper.from_array(value, name) for name, value in values.items()]
    half = helper.make_tensor("bfloat16", TensorProto.BFLOAT16, [3], [1.5, -2.0, 3.0])
    onnxblock.save_checkpoint(([], [*tensors, half]), FOLDER / "types.ckpt")
    expected: dict[str, object] = {f"frozen/{name}": value for name, value in values.items()}
    save_expected("types", expected)


def main() -> None:
    """Make every checkpoint."""
    FOLDER.mkdir(exist_ok=True)
    for optimizer, make in [("AdamW", make_artifacts), ("AdamW", make_adamw), ("SGD", make_sgd)]:
        with tempfile.TemporaryDirectory() as folder:
            generate(pathlib.Path(folder), artifacts.OptimType[optimizer])
            make(pathlib.Path(folder))
    for split in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            generate(pathlib.Path(folder), artifacts.OptimType.AdamW)
            make_external(pathlib.Path(folder), split)
    make_types()


if __name__ == "__main__":
    main()
