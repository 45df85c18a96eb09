"""Small models in text with weights from numpy, and batches for them."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser

from onnxtrain import artifacts
from onnxtrain.api import CheckpointState, Module, Optimizer

FEATURES, HIDDEN, CLASSES = 4, 5, 3
WEIGHTS = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")


def model_of(
    body: str,
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    imports: str = "",
) -> onnx.ModelProto:
    """A model from ONNX's text form, ``(float[N,4] x) => (float[N,3] y) { ... }``, and arrays.

    A dot in a name is written as two underscores in the text.
    """
    head = f'<ir_version: {ir_version}, opset_import: ["": {opset}{imports}]>'
    proto = onnx.parser.parse_model(f"{head} small {body}")
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("__", ".") for name in names]
    for name, array in (weights or {}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.5, shape).astype(dtype)


def mlp(dtype: Any = np.float32, opset: int = 17) -> onnx.ModelProto:
    """Two dense layers, ``x [N, 4] -> y [N, 3]``."""
    element = {"float32": "float", "float64": "double", "float16": "float16"}[np.dtype(dtype).name]
    return model_of(
        f"""({element}[N,4] x) => ({element}[N,3] y) {{
            h = Gemm<transB=1>(x, fc1__weight, fc1__bias)
            a = Relu(h)
            y = Gemm<transB=1>(a, fc2__weight, fc2__bias)
        }}""",
        {
            "fc1.weight": normal(HIDDEN, FEATURES, seed=1, dtype=dtype),
            "fc1.bias": normal(HIDDEN, seed=2, dtype=dtype),
            "fc2.weight": normal(CLASSES, HIDDEN, seed=3, dtype=dtype),
            "fc2.bias": normal(CLASSES, seed=4, dtype=dtype),
        },
        opset=opset,
    )


def batch_of(samples: int = 6, seed: int = 5, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """A batch for ``mlp`` with the cross entropy."""
    labels = np.random.default_rng(seed + 1).integers(0, CLASSES, samples)
    return {"x": normal(samples, FEATURES, seed=seed, dtype=dtype), "labels": labels}


def write_artifacts(
    folder: pathlib.Path, model: onnx.ModelProto | None = None, **options: Any
) -> pathlib.Path:
    """Artifacts of a model (the ``mlp`` with its last bias frozen by default)."""
    given: dict[str, Any] = {
        "requires_grad": list(WEIGHTS[:3]),
        "frozen_params": list(WEIGHTS[3:]),
        "loss": artifacts.LossType.CrossEntropyLoss,
        "optimizer": artifacts.OptimType.AdamW,
        "additional_output_names": ["y"],
    }
    folder.mkdir(exist_ok=True)
    artifacts.generate_artifacts(model or mlp(), artifact_directory=folder, **{**given, **options})
    return folder


def load_module(folder: pathlib.Path, checkpoint: str = "checkpoint", **options: Any) -> Module:
    state = CheckpointState.load_checkpoint(folder / checkpoint)
    return Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", **options)


def load_optimizer(folder: pathlib.Path, module: Module) -> Optimizer:
    return Optimizer(folder / "optimizer_model.onnx", module)
