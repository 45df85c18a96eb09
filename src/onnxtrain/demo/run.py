"""The demo's work: train, judge, write, and compare with onnxruntime."""

from __future__ import annotations

import dataclasses
import pathlib
import time

import numpy as np
import onnx
import onnxruntime

from onnxtrain.cli.fitting.feeding import accuracy
from onnxtrain.cli.fitting.progress import Display, display
from onnxtrain.data import Batches, Order
from onnxtrain.demo import digits
from onnxtrain.demo.curves import Curves
from onnxtrain.demo.model import digits_cnn
from onnxtrain.training.trainer import Trainer

BATCH = 32
LEARNING_RATE = 2e-3
SEED = 0


@dataclasses.dataclass(frozen=True)
class Summary:
    """What came out.

    Attributes:
        device: Where it was trained.
        seconds: Time spent in training and judging.
        accuracy: Share of the held-out images that the trained model is right about.
        held_out: How many those are.
        identical: On how many of them onnxruntime gives the same answer from the written file.
        distance: Largest difference between a logit here and in onnxruntime.
        files: What was written.
    """

    device: str
    seconds: float
    accuracy: float
    held_out: int
    identical: int
    distance: float
    files: list[pathlib.Path]


def run(out: pathlib.Path, epochs: int, device: str) -> Summary:
    """Train the demo's network and write it, untrained and trained, with its curves."""
    out.mkdir(parents=True, exist_ok=True)
    files = [out / name for name in ("digits.onnx", "digits-trained.onnx", "curves.png")]
    untrained, trained, picture = files
    onnx.save(digits_cnn(SEED), untrained)
    training, held_out = digits.load(SEED)
    trainer = Trainer(untrained, loss="cross_entropy", lr=LEARNING_RATE, device=device, seed=SEED)
    started = time.perf_counter()
    curves = train(trainer, _batches(training), _batches(held_out), epochs)
    seconds = time.perf_counter() - started
    trainer.save(trained)
    curves.draw(picture)
    identical, distance = compare(trainer, trained, held_out)
    count = len(held_out["image"])
    return Summary(device, seconds, curves.accuracies[-1], count, identical, distance, files)


def _batches(arrays: digits.Arrays) -> Batches:
    return Batches(arrays, Order(len(arrays["image"]), BATCH, SEED))


def train(trainer: Trainer, training: Batches, held_out: Batches, epochs: int) -> Curves:
    """Train with a learning rate that falls to zero, and judge after each epoch."""
    per_epoch = training.order.steps_per_epoch
    total = epochs * per_epoch
    curves = Curves()
    with display(total) as shown:
        for epoch in range(epochs):
            for step in range(epoch * per_epoch, (epoch + 1) * per_epoch):
                batch = training.at(step)
                trainer.lr = LEARNING_RATE * (1 - step / total)
                loss = trainer.step(batch)
                shown.step(loss, len(batch["image"]))
                curves.losses.append(float(loss))
            curves.add(trainer.evaluate(held_out), accuracy(trainer, held_out))
            _show(shown, f"epoch {epoch + 1:2}/{epochs}", curves)
    return curves


def _show(shown: Display, name: str, curves: Curves) -> None:
    figures = {
        "loss": f"{shown.mean_loss():.4f}",
        "held-out loss": f"{curves.test_losses[-1]:.4f}",
        "held-out accuracy": f"{curves.accuracies[-1]:.2%}",
    }
    shown.epoch(name, figures)


def compare(trainer: Trainer, path: pathlib.Path, held_out: digits.Arrays) -> tuple[int, float]:
    """On how many images the written file in onnxruntime agrees, and the largest difference."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = {"image": held_out["image"]}
    (theirs,) = session.run(None, inputs)
    ours = trainer.predict(inputs)["logits"].cpu().numpy()
    same = ours.argmax(axis=1) == theirs.argmax(axis=1)
    return int(same.sum()), float(np.abs(ours - theirs).max())
