from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

from onnxtrain import Trainer, onnxblock, optim
from onnxtrain.optim.config import ConfigError, OptimizerConfig
from training.small import batch_of, mlp


def test_defaults_are_those_of_the_reference():
    adam, lamb, sgd = optim.AdamConfig(), optim.LambConfig(), optim.SGDConfig()
    assert (adam.name, lamb.name, sgd.name) == ("AdamOptimizer", "LambOptimizer", "SGDOptimizer")
    assert adam.lr == lamb.lr == sgd.lr == 0.001
    assert adam.defaults == {
        "lr": 0.001,
        "alpha": 0.9,
        "beta": 0.999,
        "lambda": 0.0,
        "epsilon": 1e-8,
        "max_norm_clip": 1.0,
        "do_bias_correction": True,
        "weight_decay_mode": 0,
    }
    assert lamb.defaults == {
        "lr": 0.001,
        "alpha": 0.9,
        "beta": 0.999,
        "lambda": 0.0,
        "ratio_min": -math.inf,
        "ratio_max": math.inf,
        "epsilon": 1e-6,
        "max_norm_clip": 1.0,
        "do_bias_correction": False,
    }


def test_settings_are_attributes():
    adam = optim.AdamConfig(alpha=0.8, lambda_coef=0.1)
    assert (adam.alpha, adam.beta, adam.lambda_coef, adam.epsilon) == (0.8, 0.999, 0.1, 1e-8)
    assert adam.do_bias_correction and adam.max_norm_clip == 1.0
    assert adam.weight_decay_mode == adam.DecayMode.BEFORE_WEIGHT_UPDATE
    lamb = optim.LambConfig(ratio_min=0.5)
    assert (lamb.ratio_min, lamb.ratio_max, lamb.do_bias_correction) == (0.5, math.inf, False)


def test_groups_are_filled_with_defaults():
    config = optim.AdamConfig([{"params": ["a", "b"], "lambda_coef": 0.1, "alpha": 0.5}], lr=0.25)
    (group,) = config.params
    assert group["params"] == ["a", "b"]
    assert (group["lambda"], group["alpha"], group["beta"]) == (0.1, 0.5, 0.999)
    assert "lr" not in group and config.lr == 0.25


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: optim.AdamConfig(lr=-1.0), "'lr' must be a number"),
        (lambda: optim.AdamConfig(lr="1"), "'lr' must be a number"),
        (lambda: optim.AdamConfig(weight_decay_mode=2), "'weight_decay_mode' must be an Adam"),
        (lambda: optim.AdamConfig({"params": []}), "'params' must be a list"),
        (lambda: optim.AdamConfig(["a"]), "a group must be a dictionary"),
        (lambda: optim.AdamConfig([{"alpha": 1}]), "under 'params'"),
        (lambda: optim.AdamConfig([{"params": ["a"]}]), "set something besides"),
        (lambda: optim.AdamConfig([{"params": ["a"], "lr": 1.0}]), "a group cannot set it"),
        (lambda: optim.LambConfig([{"params": ["a"], "gamma": 1}]), "'gamma' is no setting of"),
        (lambda: optim.SGDConfig([{"params": ["a"]}]), "must be empty for SGDConfig"),
        (lambda: optim.AdamConfig([{"params": ["a"], "beta": 0.5}]).to_block(), "cannot be a grap"),
    ],
)
def test_wrong_settings_are_assertion_errors(make, match):
    with pytest.raises(AssertionError, match=match):
        make()


def nodes_of(block: onnxblock.Block) -> list[onnx.NodeProto]:
    tensor = onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")
    with onnxblock.empty_base():
        block(([tensor], []))
    return list(block.to_model_proto().graph.node)


@pytest.mark.parametrize(
    ("mode", "number"), [("BEFORE_WEIGHT_UPDATE", 0), ("AFTER_WEIGHT_UPDATE", 1)]
)
def test_adam_as_a_block(mode, number):
    mode = optim.AdamConfig.DecayMode[mode]
    config = optim.AdamConfig(lambda_coef=0.5, max_norm_clip=2.0, weight_decay_mode=mode)
    clip, node = nodes_of(config.to_block())
    assert clip.op_type == "InplaceClipGradNorm" and clip.attribute[0].f == 2.0
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    assert node.op_type == "AdamWOptimizer"
    assert (found["adam_mode"], found["weight_decay"]) == (number, 0.5)
    assert found["epsilon"] == np.float32(1e-8)


@pytest.mark.parametrize("kind", [optim.AdamConfig, optim.LambConfig, optim.SGDConfig])
def test_a_trainer_takes_the_block(kind):
    config = kind(lr=0.1)
    trainer = Trainer(
        mlp(), loss="cross_entropy", optimizer=config.to_block(), lr=config.lr, device="cpu"
    )
    losses = [float(trainer.step(batch_of())) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_a_configuration_of_ones_own_is_no_graph():
    config = OptimizerConfig("Lion", [], {"lr": 0.1})
    with pytest.raises(ConfigError, match="Lion has no form as an optimizer graph; SGDConfig"):
        config.to_block()
