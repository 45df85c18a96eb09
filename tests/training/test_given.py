"""Options of a Trainer that cannot be are refused when it is made, in words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onnxtrain import LoraConfig, SessionOptions, Trainer, onnxblock, set_seed
from onnxtrain.errors import DeviceError, LossError, OptionError, ParameterError
from onnxtrain.runtime.seeds import seed_of
from refusals import refused, train
from training.small import batch_of, mlp

BATCH = batch_of()
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("name", ["lr", "weight_decay"])
@pytest.mark.parametrize("value", [INF, NAN, 1e39, 10**400, 1j, "1"])
def test_numbers_are_finite(name, value):
    with refused(OptionError, f"{name} must be a finite number of at least 0"):
        train(mlp(), **{name: value})


@pytest.mark.parametrize("value", [INF, NAN, 0, -1, 1e39, 10**400, 1e-300])
def test_a_loss_scale_is_finite(value):
    with refused(OptionError, "a finite number above 0", "'dynamic'"):
        train(mlp(), loss_scale=value)


@pytest.mark.parametrize("value", [NAN, 0, -1, "1"])
def test_a_limit_of_gradients_is_above_zero(value):
    with refused(OptionError, "clip_grad_norm must be a number above 0", "leave it out"):
        train(mlp(), clip_grad_norm=value)


def test_an_infinite_limit_is_none():
    limited, free = train(mlp(), clip_grad_norm=INF), train(mlp())
    limited.step(BATCH)
    free.step(BATCH)
    for name, tensor in free.parameters.items():
        assert torch.equal(limited.parameters[name], tensor)


@pytest.mark.parametrize("value", [INF, NAN, None, "0.1", 1e39])
def test_a_rate_that_is_set_later_is_finite(value):
    trainer = train(mlp(), lr=0.5)
    with refused(OptionError, "lr must be a finite number"):
        trainer.lr = value
    with refused(OptionError, "a learning rate must be a finite number"):
        trainer.optimizer.set_learning_rate(value)
    assert trainer.lr == 0.5


@pytest.mark.parametrize("seed", [2**70, 2**64, -(2**64), 1.5, "a", True])
def test_a_seed_is_a_whole_number(seed):
    with refused(OptionError, "a seed is a whole number from 0 to 2**64 - 1"):
        train(mlp(), seed=seed)
    with refused(OptionError, "a seed is a whole number"):
        set_seed(seed)
    with refused(OptionError, "a seed is a whole number"):
        train(mlp(), seed=seed, lora=LoraConfig())


@pytest.mark.parametrize("seed", [-1, 2**64 - 1, np.int64(3)])
@pytest.mark.parametrize("lora", [None, LoraConfig(2)])
def test_every_seed_of_torch_will_do(seed, lora):
    assert torch.isfinite(train(mlp(), seed=seed, lora=lora).step(BATCH))
    told = torch.Generator().manual_seed(seed_of(seed)).get_state()
    assert torch.equal(told, torch.Generator().manual_seed(int(seed)).get_state())


def test_a_device_of_torch_is_a_device():
    assert Trainer(mlp(), loss="mse", device=torch.device("cpu")).device.type == "cpu"
    with refused(DeviceError, "unknown device '3'", "have  cpu"):
        train(mlp(), device=3)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"lora": 8}, OptionError, "lora=LoraConfig(rank=8)"),
        ({"groups": "gloo"}, OptionError, "leave them out"),
        ({"optimizer": onnxblock.optim.AdamW}, OptionError, "not the class AdamW"),
        ({"outputs": 3}, LossError, "have  y"),
        ({"trainable": None}, ParameterError, "not None"),
        ({"trainable": ["fc1.*", 3]}, ParameterError, "not 3"),
        ({"trainable": 3, "lora": LoraConfig()}, ParameterError, "not 3"),
        ({"lora": LoraConfig(targets=["fc1", 3])}, ParameterError, "targets of adapters are"),  # type: ignore[list-item]
        ({"loss": onnxblock.loss.MSELoss}, LossError, "MSELoss()"),
        ({"loss": torch.nn.CrossEntropyLoss}, LossError, "CrossEntropyLoss()"),
        ({"loss": torch.nn.CrossEntropyLoss()}, LossError, "lambda outputs, batch"),
    ],
)
def test_things_of_another_kind(options, kind, words):
    with pytest.raises(kind) as caught:
        train(mlp(), **options)
    assert words in str(caught.value)


def test_a_session_checks_its_seed_too():
    from onnxtrain import InferenceSession

    with refused(OptionError, "a seed is a whole number"):
        InferenceSession(mlp(), SessionOptions(seed=2**70))


BLOCKS = [
    (onnxblock.optim.AdamW, {"eps": [NAN, -1, "x", INF], "weight_decay": [NAN, -1, "x"]}),
    (onnxblock.optim.AdamW, {"betas": [0.9, (0.9,), (0.9, 1.0), (NAN, 0.9)], "adam_mode": [7]}),
    (onnxblock.optim.Adam, {"eps": [NAN], "weight_decay": [NAN], "betas": [(2, 3)]}),
    (onnxblock.optim.SGD, {"momentum": [NAN, -1, "x"], "dampening": [NAN], "weight_decay": [-1]}),
    (onnxblock.optim.Lamb, {"eps": [NAN], "weight_decay": [NAN], "ratio_min": [NAN]}),
    (onnxblock.optim.ClipGradNorm, {"max_norm": [NAN, -1, 0, "x", None]}),
    (onnxblock.optim.ClipGradValue, {"max_value": [NAN, -1, 0, "x", None]}),
]


@pytest.mark.parametrize(
    ("block", "name", "value"),
    [(block, name, v) for block, options in BLOCKS for name in options for v in options[name]],
)
def test_settings_of_optimizers(block, name, value):
    with refused(OptionError, name):
        block(**{name: value})


def test_a_limit_that_is_a_number_says_what_it_should_be():
    with refused(OptionError, "clip_grad is a block or None", "ClipGradNorm(1.0)"):
        train(mlp(), optimizer=onnxblock.optim.AdamW(clip_grad=1.0))  # type: ignore[arg-type]
