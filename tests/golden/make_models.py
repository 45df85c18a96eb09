"""Make ``tests/golden/models``: whole models and the gradients of onnxruntime-training 1.19.2.

    python tests/golden/make_models.py PYTHON

PYTHON is the interpreter of an environment with ``onnxruntime-training-cpu==1.19.2``; this script
itself runs in the project's own environment, whose torch exports the models. They are exported
with the exporter's optimiser: the raw form of every one has BatchNormalization in inference form,
CastLike, or a sequence, none of which the reference differentiates. Of the nine models it takes
five; it also wants the optional outputs of LayerNormalization to be named.

=============  ======================================================================
resnet50       taken
mobilenetv3    refused: no gradient for HardSwish
unet           refused: ResizeGrad has no kernel on the CPU
vit            taken
bert           taken
gpt2           taken; in the raw form SplitToSequence would cut attention off
llama          taken
lstm           refused: no gradient for LSTM
loop           refused: the weights of a Loop's body are no inputs of any node it sees
=============  ======================================================================
"""

import pathlib
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import ClearMetadataAndDocStringPass

from onnxtrain.graph.prepare import prepare
from onnxtrain.transforms.weights.parameters import decide

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "models"))
import architectures  # noqa: E402

_TEXT = {"width": 8, "layers": 1, "heads": 4, "vocabulary": 12, "positions": 8}
SIZES = {
    "resnet50": {"width": 1, "depths": (3, 4, 6, 3), "classes": 3, "image": 32},
    "mobilenetv3": {"width": 2, "repeats": 1, "classes": 3, "image": 32},
    "unet": {"width": 2, "classes": 2, "image": 8},
    "vit": {"width": 8, "layers": 1, "heads": 4, "image": 8, "classes": 3, "patch": 4},
    "bert": _TEXT,
    "gpt2": _TEXT,
    "llama": _TEXT,
    "lstm": {"width": 4, "vocabulary": 12, "tags": 3},
    "loop": {"width": 4, "vocabulary": 12, "tags": 3},
}
REFUSED = ("mobilenetv3", "unet", "lstm", "loop")


def add_statistics(model: onnx.ModelProto) -> None:
    """Name the optional outputs of LayerNormalization: the reference refuses to train without."""
    for node in model.graph.node:
        if node.op_type == "LayerNormalization" and len(node.output) == 1:
            node.output.extend([f"{node.output[0]}_mean", f"{node.output[0]}_inv_std"])


def made(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model as the reference takes it, and a batch with a gradient of the scores."""
    family, size = architectures.FAMILIES[name], SIZES[name]
    module = architectures.made(family, size, torch.float32)
    exported = architectures.exported(family, size, module, torch.float32)
    model = ir.from_proto(architectures.optimize(exported))
    plain = ir.to_proto(ClearMetadataAndDocStringPass()(model).model)
    del plain.graph.value_info[:]
    add_statistics(plain)
    inputs = architectures.drawn(family, size, torch.float32, 2, 5, 0)
    scores = architectures.Example(family, size, torch.float32, module, plain).scores(inputs)
    seed = torch.randn(scores.shape, generator=torch.Generator().manual_seed(3))
    arrays = {key: value.numpy() for key, value in {**inputs, "scores_grad": seed}.items()}
    return plain, arrays


def main(reference: str) -> None:
    folder = HERE / "models"
    folder.mkdir(exist_ok=True)
    for name in SIZES:
        model, arrays = made(name)
        onnx.save(model, folder / f"{name}.onnx")
        np.savez(folder / f"{name}.npz", **arrays)
        weights = [d.name for d in decide(prepare(ir.from_proto(model))) if d.trained]
        script = HERE / "reference_models.py"
        run = subprocess.run(
            [reference, script, folder / name, *weights], capture_output=True, text=True
        )
        if (run.returncode != 0) != (name in REFUSED):
            raise SystemExit(f"{name}: not what the table says\n{run.stdout}{run.stderr}")
        if run.returncode:
            print(f"{name} refused: {run.stderr.strip().splitlines()[-1][-200:]}")
            for suffix in (".onnx", ".npz"):
                (folder / f"{name}{suffix}").unlink()


if __name__ == "__main__":
    main(sys.argv[1])
