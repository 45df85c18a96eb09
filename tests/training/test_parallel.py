"""Processes that train one model on shares of each batch do what one process does on all of it."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from onnxtrain import Trainer
from onnxtrain.distributed.groups import ALONE, Groups
from onnxtrain.errors import OnnxTrainError
from onnxtrain.testing.processes import run_world
from onnxtrain.training import resume
from onnxtrain.training.parallel import Shares

pytestmark = pytest.mark.multi
SAMPLES, WIDTH = 11, 4
OPTIONS = {"loss": "cross_entropy", "lr": 0.05, "device": "cpu", "seed": 3}


def model(dropout: float = 0.0, width: int = WIDTH) -> onnx.ModelProto:
    """A layer, batch statistics that are not used in training, and a share of values dropped."""
    made = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        small (float[n, {width}] x) => (float[n, 3] scores)
        <float ratio = {{{dropout}}}, bool training = {{1}}>
        {{
            h = MatMul(x, w)
            normal = BatchNormalization(h, scale, shift, mean, var)
            kept, mask = Dropout(normal, ratio, training)
            scores = MatMul(kept, v)
        }}
    """)
    rng = np.random.default_rng(0)
    tensors = {
        "w": rng.normal(size=(width, 5)),
        "v": rng.normal(size=(5, 3)),
        "scale": np.ones(5),
        "shift": np.zeros(5),
        "mean": np.zeros(5),
        "var": np.ones(5),
    }
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name)
        for name, array in tensors.items()
    )
    return made


def batch(step: int, width: int = WIDTH) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    x = rng.normal(size=(SAMPLES, width)).astype(np.float32)
    return {"x": x, "labels": rng.integers(0, 3, SAMPLES)}


def cut(whole: dict[str, Any], part: slice) -> dict[str, Any]:
    return {name: array[part] for name, array in whole.items()}


def weights(trainer: Trainer) -> dict[str, Any]:
    return {name: trainer.state.parameters[name].tensor.numpy().copy() for name in trainer.mutable}


def shared(groups: Groups, batch_norm: str) -> tuple[list[float], dict[str, Any], float]:
    """Three steps: a share for each, two batches for one of them, no sample for the last rank."""
    trainer = Trainer(model(), batch_norm=batch_norm, groups=groups, **OPTIONS)
    first = groups.rank == 0
    shares: list[Any] = [
        cut(batch(0), slice(0, 4) if first else slice(4, None)),
        [cut(batch(1), slice(0, 3)), cut(batch(1), slice(3, 5))]
        if first
        else cut(batch(1), slice(5, None)),
        batch(2) if first else [],
    ]
    losses = [float(trainer.step(share)) for share in shares]
    mean = trainer.evaluate([batch(7)] if first else [batch(8), batch(9)])
    return losses, weights(trainer), mean


def test_shares_of_a_batch_are_one_step() -> None:
    alone = Trainer(model(), batch_norm="freeze", **OPTIONS)
    losses = [float(alone.step(batch(step))) for step in range(3)]
    mean = alone.evaluate([batch(step) for step in (7, 8, 9)])
    for found, values, judged in run_world(2, shared, "freeze"):
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        np.testing.assert_allclose(judged, mean, rtol=1e-5)
        for name, value in weights(alone).items():
            np.testing.assert_allclose(values[name], value, rtol=1e-4, atol=1e-5)


def test_running_statistics_are_the_same_everywhere() -> None:
    (_, one, _), (_, other, _) = run_world(2, shared, "train")
    assert np.abs(one["mean"]).max() > 0
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name])


def test_many_samples_and_losses_in_float16_do_not_overflow() -> None:
    loss, grad = torch.tensor(1000.0, dtype=torch.float16), torch.ones(2)
    assert Shares(ALONE).mean(loss, 100_000, [grad]).equal(loss)
    assert grad.equal(torch.ones(2))


def dropped(groups: Groups, folder: str) -> dict[str, Any]:
    """Two steps, a checkpoint and a third one; and the third one from the checkpoint."""
    share = slice(0, 5) if groups.rank == 0 else slice(5, None)
    made = [Trainer(model(0.5), groups=groups, **OPTIONS) for _ in range(2)]
    straight, resumed = made
    for step in range(2):
        straight.step(cut(batch(step), share))
    straight.checkpoint(f"{folder}/a.ckpt", {"step": 2})
    straight.step(cut(batch(2), share))
    assert resumed.resume(f"{folder}/a.ckpt") == {"step": 2}
    resumed.step(cut(batch(2), share))
    for name, value in weights(straight).items():
        np.testing.assert_array_equal(value, weights(resumed)[name])
    # What each process drops differs, although what they train does not.
    return {"weights": weights(straight), "gradient": resumed.gradients(batch(0))["v"].numpy()}


def test_a_checkpoint_of_two_processes_goes_on_in_two_and_in_one(tmp_path: pathlib.Path) -> None:
    one, other = run_world(2, dropped, str(tmp_path))
    assert not np.array_equal(one["gradient"], other["gradient"])
    alone = Trainer(model(0.5), **OPTIONS)
    assert alone.resume(tmp_path / "a.ckpt") == {"step": 2}
    assert alone.steps == 2
    assert np.isfinite(float(alone.step(batch(2))))


def test_a_process_that_was_not_there_draws_numbers_of_its_own() -> None:
    states = np.stack([torch.Generator().manual_seed(n).get_state().numpy() for n in (3, 4)])
    drawn = []
    for place in (0, 1, 2, 3, 2):
        generator = torch.Generator()
        resume._go_on(generator, states, place)
        drawn.append(torch.rand(3, generator=generator).tolist())
    assert drawn[0] == torch.rand(3, generator=torch.Generator().manual_seed(3)).tolist()
    assert drawn[1] == torch.rand(3, generator=torch.Generator().manual_seed(4)).tolist()
    assert drawn[2] == drawn[4]
    assert len({tuple(numbers) for numbers in drawn}) == 4


def test_numbers_of_another_kind_of_device_are_not_gone_on_with() -> None:
    generator = torch.Generator().manual_seed(5)
    resume._go_on(generator, np.zeros((1, 16), np.uint8), 0)
    assert generator.get_state().equal(torch.Generator().manual_seed(5).get_state())


def adapters(groups: Groups) -> dict[str, Any]:
    from onnxtrain import LoraConfig

    options = {**OPTIONS, "seed": None}
    trainer = Trainer(model(), lora=LoraConfig(rank=2), groups=groups, **options)
    trainer.evaluate([batch(0)])
    return weights(trainer)


def test_all_begin_with_the_same_random_values() -> None:
    one, other = run_world(2, adapters)
    assert all(np.array_equal(value, other[name]) for name, value in one.items())
    assert any(value.any() for value in one.values())


UNLIKE = {
    "sizes": "they differ in what is trained",
    "order": "they differ in what is trained",
    "frozen": "they differ in weights that are not trained",
    "optimizer": "they differ in the optimizer",
    "resumed": "they differ in the state of the optimizer",
    "samples": "no process has one",
}


def unlike(groups: Groups, folder: str) -> list[str]:
    """What a step says where the last process has something else than the others."""
    return [_unlike(groups, kind, folder) for kind in UNLIKE]


def _unlike(groups: Groups, kind: str, folder: str) -> str:
    other = groups.rank == 1
    options: dict[str, Any] = {**OPTIONS, "batch_norm": "freeze", "groups": groups}
    width = WIDTH + 2 * (kind == "sizes" and other)
    made = model(width=width)
    tensors = made.graph.initializer
    if kind == "order" and other:
        tensors.reverse()
    elif kind == "frozen":
        options["trainable"] = ["v"]
        frozen = next(tensor for tensor in tensors if tensor.name == "w")
        frozen.CopyFrom(onnx.numpy_helper.from_array(np.full((WIDTH, 5), other, np.float32), "w"))
    elif kind == "optimizer":
        options["optimizer"] = "sgd" if other else "adamw"
    trainer = Trainer(made, **options)
    if kind == "resumed" and not other:
        trainer.resume(f"{folder}/alone.ckpt")
    with pytest.raises(OnnxTrainError) as error:
        trainer.step([] if kind == "samples" else batch(0, width))
    return str(error.value)


def test_processes_that_do_not_train_the_same_say_so(tmp_path: pathlib.Path) -> None:
    alone = Trainer(model(), batch_norm="freeze", **OPTIONS)
    alone.step(batch(0))
    alone.checkpoint(tmp_path / "alone.ckpt")
    for told in run_world(2, unlike, str(tmp_path)):
        for text, said in zip(told, UNLIKE.values(), strict=True):
            assert said in text


def narrow(groups: Groups | None, dtype: Any) -> tuple[list[float], dict[str, Any]]:
    """Two steps of a model in 16 bits, on 600 samples whose losses add up to more than 65504."""
    made = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        line ({dtype}[n, 2] x) => ({dtype}[n, 1] y) {{ y = MatMul(x, w) }}
    """)
    kind = onnx.helper.tensor_dtype_to_np_dtype(made.graph.input[0].type.tensor_type.elem_type)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 1), kind), "w"))
    trainer = Trainer(
        made, loss="mse", optimizer="sgd", lr=0.01, device="cpu", seed=0, groups=groups
    )
    x = np.random.default_rng(0).normal(size=(600, 2)).astype(kind)
    whole = {"x": x, "target": (40 * x[:, :1]).astype(kind)}
    if groups is None:
        # The same parts, one after the other.
        share: Any = [cut(whole, slice(0, 100)), cut(whole, slice(100, None))]
    else:
        share = cut(whole, slice(0, 100) if groups.rank == 0 else slice(100, None))
    return [float(trainer.step(share)) for _ in range(2)], weights(trainer)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_means_over_samples_do_not_suffer_from_16_bits(dtype) -> None:
    losses, values = narrow(None, dtype)
    assert losses[0] == pytest.approx(1530, rel=0.1)
    for found, own in run_world(2, narrow, dtype):
        np.testing.assert_allclose(found, losses, rtol=1e-2)
        np.testing.assert_allclose(own["w"], values["w"], rtol=1e-6)
