"""Make ``tests/golden/training``: small models and what onnxruntime-training 1.19.2 does with them.

    python tests/golden/make_training.py PYTHON

PYTHON is the interpreter of an environment with ``onnxruntime-training-cpu==1.19.2``; this script
itself runs in the project's own environment, whose torch exports the models.
"""

import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ClearMetadataAndDocStringPass

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "models"))
import zoo  # noqa: E402

FIXED_BATCH = ("cnn",)  # the reference crashes on pooling gradients of a symbolic batch
OPTIMIZED = ("transformer",)  # the reference has no gradient for the raw export's CastLike
STATISTICS = ("running_mean", "running_var")


def _add_statistics(model: onnx.ModelProto) -> None:
    """Name the optional outputs of LayerNormalization: the reference refuses to train without."""
    for node in model.graph.node:
        if node.op_type == "LayerNormalization" and len(node.output) == 1:
            node.output.extend([f"{node.output[0]}_mean", f"{node.output[0]}_inv_std"])


def _plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without the exporter's notes, which have stack traces in them."""
    return ir.to_proto(ClearMetadataAndDocStringPass()(ir.from_proto(model)).model)


def main(reference: str) -> None:
    for name in zoo.NAMES:
        example = zoo.example(name, dynamic=name not in FIXED_BATCH, optimize=name in OPTIMIZED)
        _add_statistics(example.model)
        model = _plain(example.model)
        folder = HERE / "training" / name
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(model, folder / "model.onnx")
        np.savez(folder / "batch.npz", x=example.inputs.numpy(), labels=example.labels.numpy())
        names = [t.name for t in example.model.graph.initializer]
        frozen = [n for n in names if n.endswith(STATISTICS)]
        script = HERE / "reference_training.py"
        subprocess.run([reference, script, folder, "--frozen", *frozen], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
