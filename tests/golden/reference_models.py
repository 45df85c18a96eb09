"""Differentiate a model with onnxruntime-training 1.19.2 and keep the gradients.

Runs in an environment that has ``onnxruntime-training-cpu==1.19.2``:

    python reference_models.py FOLDER/NAME WEIGHT ...

``FOLDER/NAME.onnx`` is the model, whose output is ``scores``; ``FOLDER/NAME.npz`` holds its inputs
and ``scores_grad``, the gradient of the scores. It receives ``grad/<weight>`` for each weight.
"""

import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnxruntime.capi._pybind_state import GradientGraphBuilder


def main(stem: str, weights: list[str]) -> None:
    numbers = pathlib.Path(f"{stem}.npz")
    model = onnx.load(f"{stem}.onnx")
    model.ir_version = min(model.ir_version, 9)
    builder = GradientGraphBuilder(model.SerializeToString(), {"scores"}, set(weights), "")
    builder.build()
    graph = onnx.load_from_string(builder.get_model())
    with np.load(numbers) as file:
        feeds = {key: file[key] for key in file.files}
    seed = feeds["scores_grad"]  # the builder uses it, but leaves it to others to declare
    graph.graph.input.append(
        onnx.helper.make_tensor_value_info("scores_grad", onnx.TensorProto.FLOAT, seed.shape)
    )
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    grads = session.run([f"{name}_grad" for name in weights], feeds)
    np.savez_compressed(
        numbers, **feeds, **{f"grad/{n}": g for n, g in zip(weights, grads, strict=True)}
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
