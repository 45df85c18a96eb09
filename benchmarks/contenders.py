"""The models whose whole steps are measured, as torch modules, and torch's ways to train them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is ever fetched: weights are random

Step = Callable[[], torch.Tensor]
Batch = dict[str, torch.Tensor]
CLIP = 1.0
LR = 1e-4


@dataclasses.dataclass(frozen=True)
class Model:
    """One measured model.

    Attributes:
        module: Makes it, in float32 on the CPU.
        batch: Makes a batch of its inputs and of ``labels``.
        loss: Torch's loss of the scores and the labels.
        block: Ours, as an onnxblock.
        training: Whether it has dropout or statistics that a step changes.
        channels_last: Whether torch runs it in that layout.
        tokens: How many tokens or images a step sees.
    """

    module: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    block: Callable[[], Any]
    training: bool = False
    channels_last: bool = False
    tokens: int = 0


class Scores(nn.Module):
    """A model of the transformers library that gives its scores alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.inner(data).logits


def gpt2(layers: int = 12, width: int = 768, words: int = 50257, length: int = 1024) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=words, n_embd=width, n_layer=layers, n_head=width // 64, n_positions=length,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return _stirred(Scores(GPT2LMHeadModel(config)))


def bert(layers: int = 24, width: int = 1024, words: int = 30522, length: int = 512) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=layers,
        num_attention_heads=width // 64, intermediate_size=4 * width,
        max_position_embeddings=length, pad_token_id=None,
    )  # fmt: skip
    return _stirred(Scores(BertForMaskedLM(config)))


def llama(layers: int = 12, width: int = 1024, words: int = 32000, length: int = 1024) -> nn.Module:
    """Four heads share keys and values, as in the smaller ones of the third generation."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=words, hidden_size=width, intermediate_size=width * 11 // 4,
        num_hidden_layers=layers, num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 256), max_position_embeddings=length, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return _stirred(Scores(LlamaForCausalLM(config)))


def vit(layers: int = 12, width: int = 768, pixels: int = 224) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64,
        intermediate_size=4 * width, image_size=pixels, num_labels=1000,
    )  # fmt: skip
    return _stirred(Scores(ViTForImageClassification(config)))


class Residual(nn.Module):
    """Two convolutions, each behind a normalization of groups and SiLU, and a way around them."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.GroupNorm(32, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1),
            nn.GroupNorm(32, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, padding=1),
        )  # fmt: skip
        self.around = nn.Conv2d(inner, outer, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.around(x) + self.layers(x)


class UNet(nn.Module):
    """What removes noise in diffusion, without its time steps, as a classifier of pixels."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        sizes = [width, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(map(Residual, sizes, sizes[1:]))
        self.bottom = Residual(4 * width, 4 * width)
        above = [4 * width, 2 * width, width, width]
        self.up = nn.ModuleList(
            Residual(2 * size, outer) for size, outer in itertools.pairwise(above)
        )
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x, kept = self.first(images), []
        for block in self.down:
            kept.append(block(x))
            x = F.avg_pool2d(kept[-1], 2)
        x = self.bottom(x)
        for block in self.up:
            larger = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([larger, kept.pop()], 1))
        return self.last(x)


def unet(width: int = 64, classes: int = 10) -> nn.Module:
    return _stirred(UNet(width, classes))


class Recurrent(nn.Module):
    """A language model of the time before attention: layers of LSTM between two tables of words."""

    def __init__(self, layers: int, width: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.LSTM(width, width, layers, batch_first=True)
        self.last = nn.Linear(width, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(self.words(tokens))[0])


def lstm(layers: int = 2, width: int = 512, words: int = 10_000) -> nn.Module:
    return _stirred(Recurrent(layers, width, words))


def pixel_batch(samples: int, pixels: int, classes: int = 10) -> Batch:
    return {
        "images": torch.randn(samples, 3, pixels, pixels),
        "labels": torch.randint(0, classes, (samples, pixels, pixels)),
    }


def image_batch(samples: int, pixels: int) -> Batch:
    return {
        "images": torch.randn(samples, 3, pixels, pixels),
        "labels": torch.randint(0, 1000, (samples,)),
    }


def for_export(module: nn.Module) -> nn.Module:
    """A copy whose attention is written out: the exporter forgets the dropout of torch's own."""
    module = copy.deepcopy(module)
    if isinstance(module, Scores) and module.inner.config.model_type == "bert":
        module.inner.set_attn_implementation("eager")
    return module


def _stirred(module: nn.Module) -> nn.Module:
    """Biases and scales that differ, as in a trained model: an exporter merges equal ones."""
    with torch.no_grad():
        for tensor in module.parameters():
            if tensor.ndim == 1:
                tensor.add_(torch.randn_like(tensor), alpha=0.01)
    return module


def token_batch(samples: int, length: int, words: int, masked: float = 1.0) -> Batch:
    """Sentences; the label of a token is the next one, or itself where it is to be guessed."""
    tokens = torch.randint(0, words, (samples, length))
    labels = tokens.roll(-1, 1)
    labels[:, -1] = -100
    if masked < 1:
        labels = torch.where(torch.rand(tokens.shape) < masked, tokens, -100)
    return {"input_ids": tokens, "labels": labels}


def token_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, -2), labels.flatten())


@contextlib.contextmanager
def fast_products() -> Iterator[None]:
    """With: torch's products may use the tensor cores for float32 too, as its guide advises."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def torch_step(
    model: Model, module: nn.Module, batch: Batch, compiled: bool = False, autocast: bool = True
) -> Step:
    """Autocast to bfloat16, fused AdamW and clipping, eagerly or compiled."""
    device = batch["labels"].device
    module = copy.deepcopy(module).train(model.training).to(device)
    if model.channels_last:
        module = module.to(memory_format=torch.channels_last)
    run = torch.compile(module) if compiled else module
    inputs = [value for name, value in batch.items() if name != "labels"]
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=0.0, fused=True)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            loss = model.loss(run(*inputs), batch["labels"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        return loss.detach()

    return step


class Lean(nn.Module):
    """GPT-2 as an expert writes it for speed: packed projections, torch's fused attention."""

    def __init__(self, layers: int, width: int, words: int, length: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.tokens = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "between": nn.LayerNorm(width),
                    "wide": nn.Linear(width, 4 * width),
                    "narrow": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.last = nn.LayerNorm(width)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            qkv = layer["qkv"](layer["before"](x)).unflatten(-1, (3, self.heads, 64))
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["out"](y.transpose(1, 2).flatten(2))
            wide = F.gelu(layer["wide"](layer["between"](x)), approximate="tanh")
            x = x + layer["narrow"](wide)
        return F.linear(self.last(x), self.tokens.weight)


def tuned_step(batch: Batch, size: tuple[int, int, int, int]) -> Step:
    """The expert's step: bfloat16 throughout, float32 masters, compiled, Liger's loss if there."""
    torch.manual_seed(0)
    module = Lean(*size).to("cuda", torch.bfloat16)
    run = torch.compile(module)
    parameters = list(module.parameters())
    masters = [p.detach().float() for p in parameters]
    for master in masters:
        master.grad = torch.zeros_like(master)
    optimizer = torch.optim.AdamW(masters, lr=LR, weight_decay=0.0, fused=True)
    loss_of = torch.compile(token_loss)
    if importlib.util.find_spec("liger_kernel"):
        from liger_kernel.transformers.functional import liger_cross_entropy

        def loss_of(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return liger_cross_entropy(scores.flatten(0, -2), labels.flatten())

    def step() -> torch.Tensor:
        loss = loss_of(run(batch["input_ids"]), batch["labels"])
        loss.backward()
        with torch.no_grad():
            torch._foreach_copy_([m.grad for m in masters], [p.grad for p in parameters])
            torch.nn.utils.clip_grad_norm_(masters, CLIP)
            optimizer.step()
            torch._foreach_copy_(parameters, masters)
        for parameter in parameters:
            parameter.grad = None
        return loss.detach()

    return step
