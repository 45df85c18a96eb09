"""Make ``tests/golden/blocks``: what onnxruntime-training 1.19.2 does with each loss and optimizer.

Runs in an environment of its own with ``onnxruntime-training-cpu==1.19.2``::

    python tests/golden/make_blocks.py

Every case gets a folder with the four artifacts that the reference wrote, ``model.onnx`` and
``numbers.npz``: the batch, the losses of all steps, the gradients of the first, the last weights.
"""

from __future__ import annotations

import pathlib
import warnings

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.training import artifacts, onnxblock
from onnxruntime.training.api import CheckpointState, Module, Optimizer

FOLDER = pathlib.Path(__file__).parent / "blocks"
TRAINED = ["w1", "b1", "w2"]
FROZEN = ["b2"]
STEPS = 5
RATE = 0.05
HALF, THREE = np.array([0.5], np.float32), np.array([3.0], np.float32)

loss, optim = onnxblock.loss, onnxblock.optim
CASES = {
    "mse_adamw": (loss.MSELoss(), optim.AdamW()),
    "mse_sum_sgd": (loss.MSELoss(reduction="sum"), optim.SGD()),
    "l1_adamw_decay": (loss.L1Loss(), optim.AdamW(betas=(0.8, 0.99), eps=1e-4, weight_decay=0.1)),
    "l1_sum_sgd_clip": (loss.L1Loss(reduction="sum"), optim.SGD(clip_grad=optim.ClipGradNorm(0.5))),
    "bce_adamw_uncorrected": (loss.BCEWithLogitsLoss(), optim.AdamW(bias_correction=False)),
    "bce_weighted_sgd": (loss.BCEWithLogitsLoss(weight=HALF, pos_weight=THREE), optim.SGD()),
    "ce_adamw_clip": (loss.CrossEntropyLoss(), optim.AdamW(clip_grad=optim.ClipGradNorm(0.3))),
    "ce_ignore_sum_sgd": (loss.CrossEntropyLoss(reduction="sum", ignore_index=1), optim.SGD()),
}


def perceptron() -> onnx.ModelProto:
    """``output = relu(x @ w1 + b1) @ w2 + b2`` from 4 to 6 to 3 features."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (4, 6), "b1": (6,), "w2": (6, 3), "b2": (3,)}
    weights = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("Gemm", ["a", "w2", "b2"], ["output"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [value("x", TensorProto.FLOAT, ["batch", 4])],
        [value("output", TensorProto.FLOAT, ["batch", 3])],
        weights,
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def batch_of(name: str) -> dict[str, np.ndarray]:
    """Inputs of the training model, in order."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(7, 4)).astype(np.float32)
    if name.startswith("ce"):
        return {"x": x, "labels": rng.integers(0, 3, 7)}
    target = rng.random((7, 3)) if name.startswith("bce") else rng.normal(size=(7, 3))
    return {"x": x, "target": target.astype(np.float32)}


def train(folder: pathlib.Path, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Losses, first gradients and last weights."""
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(RATE)
    numbers: dict[str, np.ndarray] = {}
    losses = []
    module.train()
    for step in range(STEPS):
        losses.append(np.array(module(*batch.values())))
        if step == 0:
            grads = {f"grad/{n}": np.array(state.parameters[n].grad) for n in TRAINED}
            numbers.update(grads)
        optimizer.step()
        module.lazy_reset_grad()
    numbers["losses"] = np.array(losses)
    numbers.update({f"param/{name}": np.array(p.data) for name, p in state.parameters})
    return numbers


def main() -> None:
    warnings.simplefilter("ignore")
    for name, (loss_block, optimizer_block) in CASES.items():
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(perceptron(), folder / "model.onnx")
        artifacts.generate_artifacts(
            perceptron(),
            requires_grad=TRAINED,
            frozen_params=FROZEN,
            loss=loss_block,
            optimizer=optimizer_block,
            artifact_directory=str(folder),
        )
        batch = batch_of(name)
        numbers = train(folder, batch)
        numbers.update({f"batch/{key}": value for key, value in batch.items()})
        np.savez_compressed(folder / "numbers.npz", **numbers)


if __name__ == "__main__":
    main()
