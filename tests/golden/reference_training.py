"""Train a model with onnxruntime-training 1.19.2 and keep its artifacts and numbers.

Runs in an environment that has ``onnxruntime-training-cpu==1.19.2``:

    python reference_training.py FOLDER --frozen NAME ...

FOLDER holds ``model.onnx`` and ``batch.npz`` (one array per input of the training model). It
receives the four artifacts, a checkpoint after training and ``numbers.npz``: losses of all steps,
gradients of the first, last weights.
"""

import argparse
import pathlib

import numpy as np
import onnx
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, Module, Optimizer


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=pathlib.Path)
    arguments.add_argument("--frozen", nargs="*", default=[])
    arguments.add_argument("--steps", type=int, default=10)
    options = arguments.parse_args()
    folder = options.folder
    model = onnx.load(folder / "model.onnx")
    model.ir_version = min(model.ir_version, 9)
    weights = [
        t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims
    ]
    trained = [name for name in weights if name not in options.frozen]
    artifacts.generate_artifacts(
        model,
        requires_grad=trained,
        frozen_params=options.frozen,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=str(folder),
    )
    np.savez(folder / "numbers.npz", **train(folder, trained, options.steps))


def train(folder: pathlib.Path, trained: list[str], steps: int) -> dict[str, np.ndarray]:
    batch = np.load(folder / "batch.npz")
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"))
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    inputs = [batch[name] for name in module.input_names()]
    numbers, losses = {}, []
    module.train()
    for step in range(steps):
        losses.append(np.array(module(*inputs)))
        if step == 0:
            grads = {f"grad/{name}": np.array(state.parameters[name].grad) for name in trained}
            numbers.update(grads)
        optimizer.step()
        module.lazy_reset_grad()
    numbers["losses"] = np.array(losses)
    numbers.update({f"param/{name}": np.array(p.data) for name, p in state.parameters})
    CheckpointState.save_checkpoint(state, str(folder / "checkpoint_trained"), True)
    numbers["next_loss"] = np.array(module(*inputs))
    return numbers


if __name__ == "__main__":
    main()
