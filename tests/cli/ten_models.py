"""Ten small models as a stranger might bring them, each with its torch module and data."""

from __future__ import annotations

import copy
import dataclasses
import io
import warnings
from collections.abc import Callable

import architectures
import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper
from torch import nn

import zoo

SAMPLES = 32
EXPORTED = {"mobilenet": "mobilenetv3", "unet": "unet", "bert": "bert", "gpt2": "gpt2",
            "vit": "vit", "lstm": "lstm"}  # fmt: skip
NAMES = ("mlp", "cnn", *EXPORTED, "autoencoder", "qdq")


@dataclasses.dataclass(frozen=True)
class Brought:
    """A model, data, and what torch makes of both.

    Attributes:
        model: The ONNX model.
        module: The torch module that it was made from.
        data: Arrays by name, inputs and labels.
        options: What fit is told about it.
        loss: The loss of the module on a batch.
        lr: Learning rate.
    """

    model: onnx.ModelProto
    module: nn.Module
    data: dict[str, np.ndarray]
    options: tuple[str, ...]
    loss: Callable[[nn.Module, dict[str, torch.Tensor]], torch.Tensor]
    lr: float = 3e-3

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return {value.name: self.data[value.name] for value in self.model.graph.input}


def brought(name: str) -> Brought:
    """A model by name."""
    if name in EXPORTED:
        return _architecture(EXPORTED[name])
    return {"mlp": _mlp, "cnn": _cnn, "autoencoder": _autoencoder, "qdq": _quantised}[name]()


def _architecture(name: str) -> Brought:
    found = architectures.example(name)
    inputs = found.batch(SAMPLES)
    with torch.no_grad():
        scores = found.scores(inputs)
    labels = found.labels(scores)
    if name == "lstm":  # too small to learn labels by heart
        labels = inputs["tokens"] % found.size["tags"]
    kind = "token_cross_entropy" if found.family.per_token else "cross_entropy"

    def loss(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        given = {key: batch[key] for key in inputs}
        return found.loss(found.scores(given, module), batch["labels"])

    data = {key: value.numpy() for key, value in {**inputs, "labels": labels}.items()}
    rate = 3e-2 if name == "lstm" else 3e-3
    model = _with_output_shape(found.model, scores.ndim)
    return Brought(model, found.module, data, ("--loss", kind), loss, rate)


def _with_output_shape(model: onnx.ModelProto, rank: int) -> onnx.ModelProto:
    """ONNX's checker wants outputs to have a shape, be it of free dimensions."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    declared = copied.graph.output[0].type.tensor_type
    if not declared.HasField("shape"):
        for axis in range(rank):
            declared.shape.dim.add().dim_param = f"axis_{axis}"
    return copied


def _classified(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(module(batch["x"]), batch["labels"])


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(SAMPLES, *shape)).astype(np.float32)


def _labels() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 10, SAMPLES)


def _exported(name: str, *shape: int) -> Brought:
    """A model of the zoo."""
    found = zoo.example(name)
    data = {"x": _random(*shape), "labels": _labels()}
    return Brought(found.model, found.module, data, ("--loss", "cross_entropy"), _classified)


def _mlp() -> Brought:
    return _exported("mlp", 12)


def _cnn() -> Brought:
    return _exported("cnn", 1, 8, 8)


def _autoencoder() -> Brought:
    """Its target is its input, which --map says."""
    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 12))
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (torch.zeros(2, 12),), buffer, dynamo=False, input_names=["x"],
                          output_names=["y"], dynamic_axes={"x": {0: "n"}})  # fmt: skip

    def loss(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.mse_loss(module(batch["x"]), batch["x"])

    data = {"x": _random(12)}
    options = ("--loss", "mse", "--map", "target=x")
    return Brought(onnx.load_from_string(buffer.getvalue()), module, data, options, loss)


class Quantised(nn.Module):
    """A convolution and a linear layer with weights and activations of eight bits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.head = nn.Linear(6 * 6 * 6, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.conv2d(_rounded(x), _rounded(self.conv.weight), self.conv.bias)
        x = _rounded(torch.relu(x)).flatten(1)
        return F.linear(x, _rounded(self.head.weight), self.head.bias)


SCALE = 1 / 32


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return torch.fake_quantize_per_tensor_affine(x, SCALE, 0, -128, 127)


def _quantised() -> Brought:
    torch.manual_seed(6)
    module = Quantised()
    weights = {name: p.detach().numpy() for name, p in module.named_parameters()}
    nodes: list[onnx.NodeProto] = []

    def rounded(name: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}_q"]))
        nodes.append(
            helper.make_node("DequantizeLinear", [f"{name}_q", "scale", "zero"], [f"{name}_dq"])
        )
        return f"{name}_dq"

    nodes.append(
        helper.make_node("Conv", [rounded("x"), rounded("conv.weight"), "conv.bias"], ["c"])
    )
    nodes.append(helper.make_node("Relu", ["c"], ["r"]))
    nodes.append(helper.make_node("Flatten", [rounded("r")], ["f"]))
    nodes.append(
        helper.make_node("Gemm", ["f", rounded("head.weight"), "head.bias"], ["scores"], transB=1)
    )
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["n", 10])],
        [
            numpy_helper.from_array(np.float32(SCALE), "scale"),
            numpy_helper.from_array(np.int8(0), "zero"),
            *(numpy_helper.from_array(array, name) for name, array in weights.items()),
        ],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    data = {"x": _random(1, 8, 8), "labels": _labels()}
    return Brought(model, module, data, ("--loss", "cross_entropy"), _classified)


def torch_losses(it: Brought, batches: list[dict[str, np.ndarray]]) -> list[float]:
    """Losses of a plain torch loop with AdamW over the same batches."""
    module = copy.deepcopy(it.module).train()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    optimizer = torch.optim.AdamW(module.parameters(), lr=it.lr, weight_decay=0.0)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = it.loss(module, {key: torch.from_numpy(array) for key, array in batch.items()})
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
