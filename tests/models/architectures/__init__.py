"""Nine architectures with random weights, as torch's exporter writes them."""

from __future__ import annotations

import functools

import onnx
import onnx_ir as ir
import torch
from exports import kept

from architectures.convolutional import MOBILENETV3, RESNET50, UNET
from architectures.family import Example, Family, Inputs, drawn, exported, made
from architectures.recast import recast
from architectures.recurrent import LOOP, LSTM
from architectures.transformer import BERT, GPT2, LLAMA, VIT

FAMILIES: dict[str, Family] = {
    "resnet50": RESNET50,
    "mobilenetv3": MOBILENETV3,
    "unet": UNET,
    "vit": VIT,
    "bert": BERT,
    "gpt2": GPT2,
    "llama": LLAMA,
    "lstm": LSTM,
    "loop": LOOP,
}
NAMES = tuple(FAMILIES)
DTYPES = {
    torch.float32: ir.DataType.FLOAT,
    torch.float64: ir.DataType.DOUBLE,
    torch.bfloat16: ir.DataType.BFLOAT16,
}


@functools.cache
def example(name: str, dtype: torch.dtype = torch.float32, large: bool = False) -> Example:
    """A model by name, with seeded weights, as the exporter writes it without optimising.

    Names of weights are then those of the module; see ``optimized`` for the other form.
    """
    family = FAMILIES[name]
    size = family.large if large else family.small
    module = made(family, size, dtype)
    own = dtype == torch.float32 or family.mixed or family.write is not None
    if own:
        key = f"{name}-{dtype}-{large}"
        fresh = functools.partial(made, family, size, dtype)
        model = kept(key, module, lambda: exported(family, size, fresh(), dtype))
    else:
        model = recast(example(name).model, DTYPES[dtype])
    return Example(family, size, dtype, module, model)


@functools.cache
def optimized(name: str, large: bool = False) -> onnx.ModelProto:
    """The float32 model after the exporter's optimiser."""
    return optimize(example(name, large=large).model)


def optimize(model: onnx.ModelProto) -> onnx.ModelProto:
    """What the exporter's optimiser makes of a model.

    Constants are folded, which renames and transposes weights, and batch normalisation is folded
    into convolutions.
    """
    import onnxscript.optimizer

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return onnxscript.optimizer.optimize(copy)


__all__ = [
    "FAMILIES",
    "NAMES",
    "Cache",
    "Example",
    "Family",
    "Inputs",
    "drawn",
    "example",
    "exported",
    "made",
    "optimize",
    "optimized",
]
