"""A training loop as it is written for onnxruntime-training; only the last two imports differ.

There they read ``from onnxruntime.training import artifacts`` and
``from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer``.
"""

import itertools
import os

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxtrain import artifacts
from onnxtrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer

BATCH, EPOCHS = 20, 25


def spirals(samples, seed):
    """Points of two spirals, and which spiral each belongs to."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, samples)
    turn = np.sqrt(rng.random(samples)) * 6
    angle = turn + np.pi * labels
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1) / 6
    return (points + rng.normal(0, 0.02, points.shape)).astype(np.float32), labels


def classifier():
    """Three dense layers."""
    rng = np.random.default_rng(0)
    sizes, names, nodes, weights = (2, 64, 64, 2), ["points"], [], []
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes), start=1):
        kernel = rng.normal(0, (2 / fan_in) ** 0.5, (fan_in, fan_out)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{layer}"))
        weights.append(numpy_helper.from_array(np.zeros(fan_out, np.float32), f"b{layer}"))
        last = layer == len(sizes) - 1
        output = "logits" if last else f"sum{layer}"
        nodes.append(helper.make_node("Gemm", [names[-1], f"w{layer}", f"b{layer}"], [output]))
        if not last:
            names.append(f"hidden{layer}")
            nodes.append(helper.make_node("Relu", [output], [names[-1]]))
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("points", 1, ["batch", 2])],
        [helper.make_tensor_value_info("logits", 1, ["batch", 2])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


model = classifier()
os.makedirs("artifacts", exist_ok=True)
artifacts.generate_artifacts(
    model,
    requires_grad=[tensor.name for tensor in model.graph.initializer],
    loss=artifacts.LossType.CrossEntropyLoss,
    optimizer=artifacts.OptimType.AdamW,
    artifact_directory="artifacts",
    additional_output_names=["logits"],
)

state = CheckpointState.load_checkpoint("artifacts/checkpoint")
module = Module("artifacts/training_model.onnx", state, "artifacts/eval_model.onnx")
optimizer = Optimizer("artifacts/optimizer_model.onnx", module)

points, labels = spirals(1000, seed=1)
steps = EPOCHS * len(points) // BATCH
scheduler = LinearLRScheduler(
    optimizer, warmup_step_count=steps // 20, total_step_count=steps, initial_lr=0.01
)

for epoch in range(EPOCHS):
    module.train()
    losses = []
    for start in range(0, len(points), BATCH):
        batch = slice(start, start + BATCH)
        loss, _ = module(points[batch], labels[batch])
        losses.append(loss)
        optimizer.step()
        module.lazy_reset_grad()
        scheduler.step()
    state.properties["epoch"] = epoch
    if epoch % 5 == 4:
        print(
            f"epoch {epoch}  loss {np.mean(losses):.4f}  rate {optimizer.get_learning_rate():.4f}"
        )

CheckpointState.save_checkpoint(state, "artifacts/trained", include_optimizer_state=True)
module.export_model_for_inferencing("trained.onnx", ["logits"])
onnx.checker.check_model("trained.onnx")

module.eval()
held_out, expected = spirals(400, seed=2)
_, logits = module(held_out, expected)
print(f"held-out accuracy {np.mean(logits.argmax(axis=1) == expected):.3f}")
