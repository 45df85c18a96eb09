"""Whole training steps of well-known models on a GPU, against torch eager, compiled and tuned.

python -m benchmarks models [gpt2] [bert] [llama] [vit] [resnet] [unet] [lstm]
    [--save] [--curves STEPS [--starts MANY]] [--small]
"""

from __future__ import annotations

import argparse
import gc
import io
import itertools
import math
import pathlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import onnx
import torch
import torch.nn.functional as F

import contenders
from contenders import CLIP, LR, Batch, Model, Step
from onnxtrain import Trainer, onnxblock
from page import CURVES, distance
from report import append, needs_gpu, table

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "models"))
from architectures.convolutional import ResNet

GPT2 = (12, 768, 50257, 1024)
BERT = (24, 1024, 30522, 512)
LLAMA = (12, 1024, 32000, 1024)
VIT = (12, 768)
LSTM = (2, 512, 10_000)
SLOW_TO_COMPILE = ("bert",)
"""Compiling takes two minutes, and the step is no faster than the eager one then."""
LITTLE = 2.0**-23
"""By about this share weights of other starts differ: a last bit of float32."""
SMALL_GPT2, SMALL_BERT = (2, 128, 512, 64), (2, 128, 512, 64)
SMALL_LLAMA, SMALL_VIT, SMALL_LSTM = (2, 512, 512, 64), (2, 128), (2, 64, 512)


def models(small: bool) -> dict[str, Model]:
    gpt2, bert = (SMALL_GPT2, SMALL_BERT) if small else (GPT2, BERT)
    llama, vit = (SMALL_LLAMA, SMALL_VIT) if small else (LLAMA, VIT)
    images, pixels = (4, 64) if small else (128, 224)
    texts, sentences = (2, 2) if small else (16, 32)
    lstm, lines = (SMALL_LSTM, (2, 8)) if small else (LSTM, (64, 128))
    tokens = onnxblock.loss.TokenCrossEntropyLoss
    return {
        "gpt2": Model(
            lambda: contenders.gpt2(*gpt2),
            lambda: contenders.token_batch(texts, gpt2[3], gpt2[2]),
            contenders.token_loss,
            tokens,
            tokens=texts * gpt2[3],
        ),
        "bert": Model(
            lambda: contenders.bert(*bert),
            lambda: contenders.token_batch(sentences, bert[3], bert[2], masked=0.15),
            contenders.token_loss,
            tokens,
            training=True,
            tokens=sentences * bert[3],
        ),
        "llama": Model(
            lambda: contenders.llama(*llama),
            lambda: contenders.token_batch(texts, llama[3], llama[2]),
            contenders.token_loss,
            tokens,
            tokens=texts * llama[3],
        ),
        "vit": Model(
            lambda: contenders.vit(*vit, pixels),
            lambda: contenders.image_batch(images, pixels),
            F.cross_entropy,
            onnxblock.loss.CrossEntropyLoss,
            tokens=images,
        ),
        "resnet": Model(
            lambda: ResNet(64, (3, 4, 6, 3), 1000),
            lambda: contenders.image_batch(images, pixels),
            F.cross_entropy,
            onnxblock.loss.CrossEntropyLoss,
            training=True,
            channels_last=True,
            tokens=images,
        ),
        "unet": Model(
            lambda: contenders.unet(32 if small else 64),
            lambda: contenders.pixel_batch(2 if small else 32, 32 if small else 128),
            F.cross_entropy,
            onnxblock.loss.CrossEntropyLoss,
            channels_last=True,
            tokens=2 if small else 32,
        ),
        "lstm": Model(
            lambda: contenders.lstm(*lstm),
            lambda: contenders.token_batch(*lines, lstm[2]),
            contenders.token_loss,
            tokens,
            training=True,  # cuDNN has no gradients of a layer that only evaluates
            tokens=math.prod(lines),
        ),
    }


def export(name: str, model: Model, module: torch.nn.Module, batch: Batch) -> onnx.ModelProto:
    """What torch's exporter writes: BERT with its dropout, ResNet with its normalizations."""
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module.train(name == "bert"),
            tuple(inputs.values()),
            dynamo=True,
            verbose=False,
            input_names=list(inputs),
            output_names=["scores"],
            optimize=name != "resnet",  # it would fold the normalizations into the convolutions
        )
    buffer = io.BytesIO()
    onnx.save(program.model_proto, buffer)
    return onnx.load_from_string(buffer.getvalue())


def measured(make: Callable[[], Step], repeats: int = 20) -> dict[str, float]:
    """Median time of a step, the memory that is held, and how long the first one took.

    What torch calls allocated leaves out the pool of a recorded step; what it reserved has it.
    """
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    step = make()
    loss = float(step())
    first = time.perf_counter() - start
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return {
        "ms": statistics.median(times),
        "peak GB": torch.cuda.max_memory_allocated() / 1e9,
        "reserved GB": torch.cuda.memory_reserved() / 1e9,
        "first s": first,
        "loss": loss,
    }


def ours(model: Model, proto: onnx.ModelProto, batch: Batch) -> Step:
    trainer = Trainer(
        proto,
        loss=model.block(),
        lr=LR,
        clip_grad_norm=CLIP,
        device="cuda",
        precision="bf16",
        seed=0,
    )
    return lambda: trainer.step(batch)


def rows(name: str, model: Model, small: bool, peers: bool) -> list[dict[str, object]]:
    torch.manual_seed(0)
    module, batch = model.module(), model.batch()
    proto = export(name, model, contenders.for_export(module), batch)
    batch = {key: value.cuda() for key, value in batch.items()}
    ways: dict[str, Callable[[], Step]] = {"onnxtrain bf16": lambda: ours(model, proto, batch)}
    if peers:
        ways["torch eager autocast"] = lambda: contenders.torch_step(model, module, batch)
    if peers and name not in SLOW_TO_COMPILE:
        ways["torch.compile autocast"] = lambda: contenders.torch_step(model, module, batch, True)
    if peers and name == "gpt2":
        size = SMALL_GPT2 if small else GPT2
        ways["torch.compile tuned bf16"] = lambda: contenders.tuned_step(batch, size)
    found = []
    for way, make in ways.items():
        try:
            result = measured(make)
        except torch.OutOfMemoryError as error:
            print(f"{name}, {way}: {error}", file=sys.stderr)
            continue
        rate = model.tokens / result["ms"] * 1e3
        found.append({"model": name, "way": way, **result, "tokens or images/s": rate})
        print(table(found[-1:]), flush=True)
    return found


def curves(name: str, model: Model, steps: int, start: int = 0) -> list[dict[str, object]]:
    """Losses of ours and of torch over the same batches from the same weights.

    Torch's two ways, autocast and float32, are apart by what rounding alone makes of a curve. So
    are the curves of one way from starts that hardly differ.
    """
    torch.manual_seed(0)
    module = model.module()
    some = [model.batch() for _ in range(8)]
    if start:
        _move_a_little(module, start)
    proto = export(name, model, contenders.for_export(module), some[0])
    batch = {key: value.cuda() for key, value in some[0].items()}
    steps_of = (
        ours(model, proto, batch),
        contenders.torch_step(model, module, batch),
        contenders.torch_step(model, module, batch, autocast=False),
    )
    stepping = dict(zip(CURVES, steps_of, strict=True))
    losses: dict[str, list[torch.Tensor]] = {way: [] for way in stepping}
    for index in range(steps):
        for key, value in some[index % len(some)].items():
            batch[key].copy_(value)
        for way, step in stepping.items():
            losses[way].append(step().float().clone())
    return [
        {
            "model": name,
            "step": index,
            **{way: float(ls[index]) for way, ls in losses.items()},
            "start": start,
        }
        for index in range(steps)
    ]


@torch.no_grad()
def _move_a_little(module: torch.nn.Module, seed: int) -> None:
    """Other weights, apart by about as much as float32 numbers are."""
    noise = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        weight.mul_(1 + LITTLE * torch.randn(weight.shape, generator=noise))


def apart(found: list[dict[str, object]], one: str, other: str) -> str:
    """How far two curves are apart, on average over each quarter of the steps, in per cent."""
    size = -(-len(found) // 4)
    quarters = [found[at : at + size] for at in range(0, len(found), size)]
    means = [f"{distance(rows, one, other):.2%}" for rows in quarters]
    return f"{one} to {other}: {', '.join(means)}"


def told(found: list[dict[str, object]]) -> list[dict[str, object]]:
    """The curves of a start themselves, of which a part was printed."""
    our_way, torchs, float32 = CURVES
    print(table(found[:: max(1, len(found) // 10)]))
    print(apart(found, our_way, torchs))
    print(apart(found, float32, torchs), flush=True)
    gc.collect()
    torch.cuda.empty_cache()
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("names", nargs="*", default=[*models(small=True)])
    arguments.add_argument("--save", action="store_true", help="append to results/models.csv")
    arguments.add_argument("--small", action="store_true", help="small models, to try the script")
    arguments.add_argument("--alone", action="store_true", help="without peers")
    arguments.add_argument("--curves", type=int, help="losses of so many steps instead of times")
    arguments.add_argument("--starts", type=int, default=1, help="from so many starts each")
    options = arguments.parse_args()
    needs_gpu()
    known = models(options.small)
    with contenders.fast_products():
        for name in options.names or list(known):
            if options.curves:
                found = [
                    row
                    for start in range(options.starts)
                    for row in told(curves(name, known[name], options.curves, start))
                ]
            else:
                found = rows(name, known[name], options.small, not options.alone)
            if options.save:
                print(append("curves" if options.curves else "models", found))


if __name__ == "__main__":
    main()
