"""The API of onnxruntime-training: make artifacts offline, then train with them elsewhere."""

import pathlib

import onnxtrain.api as orttraining
from onnxtrain import artifacts
from onnxtrain.demo import digits
from onnxtrain.demo.model import digits_cnn

model = digits_cnn()
statistics = [t.name for t in model.graph.initializer if t.name.endswith((".mean", ".var"))]
weights = [t.name for t in model.graph.initializer if t.name not in [*statistics, "ratio"]]
folder = pathlib.Path("artifacts")
folder.mkdir(exist_ok=True)
artifacts.generate_artifacts(
    model,
    requires_grad=weights,
    frozen_params=statistics,
    loss=artifacts.LossType.CrossEntropyLoss,
    optimizer=artifacts.OptimType.AdamW,
    artifact_directory=folder,
    additional_output_names=["logits"],
)

state = orttraining.CheckpointState.load_checkpoint(folder / "checkpoint")
module = orttraining.Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
optimizer = orttraining.Optimizer(folder / "optimizer_model.onnx", module)
optimizer.set_learning_rate(3e-3)

training, held_out = digits.load()
for epoch in range(3):
    module.train()
    for i in range(0, 1400, 50):
        loss, _ = module(training["image"][i : i + 50], training["labels"][i : i + 50])
        optimizer.step()
        module.lazy_reset_grad()
    module.eval()
    _, scores = module(held_out["image"], held_out["labels"])
    right = (scores.argmax(axis=1) == held_out["labels"]).mean()
    print(f"epoch {epoch}  loss {float(loss):.4f}  held-out accuracy {right:.3f}")
orttraining.CheckpointState.save_checkpoint(state, folder / "trained", include_optimizer_state=True)
module.export_model_for_inferencing("digits-trained.onnx", ["logits"])
