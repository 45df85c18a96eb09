from __future__ import annotations

from types import SimpleNamespace

import pytest

from onnxtrain.amp import DynamicLossScaler, LossScaler
from onnxtrain.errors import OptionError


def updates(scaler: LossScaler, flags: str) -> list[float]:
    return [scaler.update(SimpleNamespace(all_finite=flag == "1")) for flag in flags]


def test_scales_go_up_after_a_window_and_down_at_an_overflow():
    scaler = DynamicLossScaler(
        loss_scale=4, up_scale_window=2, min_loss_scale=1.0, max_loss_scale=8
    )
    # as onnxruntime-training 1.19.2 goes
    assert updates(scaler, "11111000011") == [4, 8, 8, 8, 8, 4, 2, 1, 1, 1, 2]


def test_defaults_are_those_of_the_reference():
    scaler = DynamicLossScaler()
    assert scaler.automatic_update is True
    assert scaler.loss_scale == 65536.0
    assert scaler.up_scale_window == 2000
    assert (scaler.min_loss_scale, scaler.max_loss_scale) == (1.0, 2.0**24)
    assert scaler.input_name is None


def test_an_overflow_starts_the_window_again():
    scaler = DynamicLossScaler(loss_scale=16, up_scale_window=3)
    assert updates(scaler, "1101111") == [16, 16, 8, 8, 8, 16, 16]


def test_without_updates_the_scale_is_static():
    scaler = DynamicLossScaler(automatic_update=False, loss_scale=4, up_scale_window=1)
    assert updates(scaler, "1010") == [4, 4, 4, 4]


def test_reset_goes_back_to_the_start():
    scaler = DynamicLossScaler(loss_scale=4, up_scale_window=2)
    updates(scaler, "01")
    scaler.reset()
    assert scaler.loss_scale == 4
    assert updates(scaler, "11") == [4, 8]


def test_state_goes_on_in_another_scaler():
    scaler = DynamicLossScaler(loss_scale=4, up_scale_window=3)
    updates(scaler, "011")
    other = DynamicLossScaler(loss_scale=64, up_scale_window=3)
    other.load_state_dict(scaler.state_dict())
    assert updates(other, "1") == updates(scaler, "1") == [4]


@pytest.mark.parametrize("scale", [0, -1, "4", None, True])
def test_a_scale_must_be_a_positive_number(scale):
    with pytest.raises(AssertionError, match="'loss_scale' must be a positive float"):
        DynamicLossScaler(loss_scale=scale)
    scaler = DynamicLossScaler()
    with pytest.raises(OptionError, match="'loss_scale' must be a positive float"):
        scaler.loss_scale = scale


def test_a_rule_of_your_own():
    class Static(LossScaler):
        def update(self, train_step_info):
            return self.loss_scale

    scaler = Static(3)
    scaler.input_name = "scale"
    assert updates(scaler, "10") == [3, 3]
    with pytest.raises(TypeError, match="abstract"):
        LossScaler(1.0)
