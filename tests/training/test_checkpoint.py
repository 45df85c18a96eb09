"""CheckpointState: parameters and properties as a dictionary each, and their file."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from onnxtrain.api import CheckpointState
from onnxtrain.errors import CheckpointError, OptionError, ParameterError
from onnxtrain.formats import odtc
from onnxtrain.training.checkpoint import Parameter, Tensors
from training.small import (
    WEIGHTS,
    batch_of,
    load_module,
    load_optimizer,
    mlp,
    write_artifacts,
)


@pytest.fixture
def state(folder):
    return CheckpointState.load_checkpoint(folder / "checkpoint")


def test_parameters_are_a_dictionary_sorted_by_name(state):
    assert len(state.parameters) == 4
    assert "fc1.weight" in state.parameters and "fc3.weight" not in state.parameters
    assert [name for name, _ in state.parameters] == sorted(WEIGHTS)
    assert all(name == parameter.name for name, parameter in state.parameters)


def test_parameters_say_whether_they_are_trained(state):
    trained = {name for name, parameter in state.parameters if parameter.requires_grad}
    assert trained == set(WEIGHTS[:3])


def test_data_is_a_copy(state):
    data = state.parameters["fc1.bias"].data
    before = data.copy()
    data[:] = 9
    np.testing.assert_array_equal(state.parameters["fc1.bias"].data, before)


@pytest.mark.parametrize("by", ["item", "attribute"])
def test_values_can_be_assigned_before_and_after_a_module_exists(folder, state, by):
    def assign(value):
        if by == "item":
            state.parameters["fc1.bias"] = value
        else:
            state.parameters["fc1.bias"].data = value

    assign(np.arange(5, dtype=np.float32))
    np.testing.assert_array_equal(state.parameters["fc1.bias"].data, np.arange(5))
    module = load_module(folder)
    module.state.parameters["fc1.bias"] = np.zeros(5, np.float32)
    zero = module(*batch_of().values())[0]
    module.state.parameters["fc1.bias"] = np.full(5, 3, np.float32)
    assert abs(module(*batch_of().values())[0] - zero) > 1e-3


def test_a_value_need_not_be_contiguous(state):
    value = np.arange(40, dtype=np.float32).reshape(4, 10)[:, ::2].T
    state.parameters["fc1.weight"] = value
    np.testing.assert_array_equal(state.parameters["fc1.weight"].data, value)


@pytest.mark.parametrize(
    "value",
    [np.zeros(4, np.float32), np.zeros(5, np.float64), torch.zeros(1, 5), "x", [[1.0], 2.0], None],
)
def test_a_value_of_another_type_or_shape_is_refused(state, value):
    before = state.parameters["fc1.bias"].data
    with pytest.raises(ParameterError, match=r"'fc1.bias' is torch.float32 \[5\], cannot take"):
        state.parameters["fc1.bias"] = value
    np.testing.assert_array_equal(state.parameters["fc1.bias"].data, before)


def test_unknown_names_are_a_key_error_that_lists_the_known_ones(state):
    for access in (state.parameters.__getitem__, lambda n: state.parameters.__setitem__(n, [1.0])):
        with pytest.raises(KeyError) as caught:
            access("fc9.weight")
        assert isinstance(caught.value, ParameterError)
        assert "no parameter 'fc9.weight'" in str(caught.value)
        assert "have  fc1.weight, fc2.weight, fc1.bias" in str(caught.value)


def test_live_tensors_name_what_is_trained_if_a_name_is_unknown(state):
    tensors = Tensors(state.parameters)
    with pytest.raises(
        ParameterError, match=r"no trained parameter 'fc1.wait'\n  have  fc1.weight"
    ):
        tensors["fc1.wait"]
    assert tensors.get("fc1.wait") is None


def test_gradients_exist_once_a_module_does_and_only_for_what_is_trained(folder):
    module = load_module(folder)
    state = module.state
    assert state.parameters["fc2.bias"].grad is None
    np.testing.assert_array_equal(state.parameters["fc1.bias"].grad, np.zeros(5))
    module(*batch_of().values())
    assert np.abs(state.parameters["fc1.bias"].grad).max() > 0
    assert state.parameters["fc2.bias"].grad is None


def test_gradients_are_none_without_a_module(state):
    assert state.parameters["fc1.bias"].grad is None


def test_representations_name_the_parameters(state):
    text = repr(state.parameters)
    assert all(name in text for name in WEIGHTS)
    assert "frozen" in repr(state.parameters["fc2.bias"])
    assert "trainable" in repr(state.parameters["fc1.bias"])


def test_properties_hold_numbers_and_text(state, tmp_path):
    state.properties["epoch"] = 3
    state.properties["best"] = 0.25
    state.properties["note"] = "ärger"
    state.properties["flag"] = True
    state.properties["count"] = np.int64(7)
    state.properties["share"] = np.float32(0.5)
    CheckpointState.save_checkpoint(state, tmp_path / "saved")
    again = CheckpointState.load_checkpoint(tmp_path / "saved").properties
    expected = {
        "best": 0.25,
        "count": 7,
        "epoch": 3,
        "flag": 1,
        "note": "ärger",
        "share": 0.5,
    }
    assert dict(again) == expected and list(dict(again)) == list(expected)
    assert [type(value) for _, value in again] == [float, int, int, int, str, float]
    assert len(again) == 6 and "epoch" in again and "step" not in again
    assert "epoch" in repr(again)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (np.array(2.5, np.float32), 2.5),
        (np.array(3), 3),
        (np.bool_(True), 1),
        (torch.tensor(0.25), 0.25),
        (np.str_("text"), "text"),
    ],
)
def test_a_property_may_be_what_a_step_gives(state, given, kept):
    state.properties["loss"] = given
    assert state.properties["loss"] == kept and type(state.properties["loss"]) is type(kept)


def test_parameters_and_properties_are_not_replaced_as_a_whole(state):
    for name in ("parameters", "properties"):
        with pytest.raises(AttributeError, match=name):
            setattr(state, name, {})
    assert len(state.parameters) == 4 and len(state.properties) == 0


def test_other_properties_are_a_type_error_and_missing_ones_a_key_error(state):
    with pytest.raises(TypeError, match="property 'list' must be int, float or str"):
        state.properties["list"] = [1]
    with pytest.raises(TypeError, match="the name of a property must be a string, not 3"):
        state.properties[3] = 1
    with pytest.raises(KeyError):
        _ = state.properties["list"]


@pytest.mark.parametrize("value", [2**70, 1e300, "\ud800"], ids=["int", "float", "text"])
def test_a_property_that_the_file_cannot_hold_is_refused_at_once(state, tmp_path, value):
    with pytest.raises(CheckpointError, match=r"property 'far'|cannot be stored as UTF-8"):
        state.properties["far"] = value
    assert "far" not in state.properties
    CheckpointState.save_checkpoint(state, tmp_path / "saved")


def test_what_is_saved_is_a_state(state, tmp_path):
    with pytest.raises(OptionError, match=r"save_checkpoint\(state, path\)"):
        CheckpointState.save_checkpoint(str(tmp_path / "saved"), state)


@pytest.mark.parametrize("kind", [str, os.fspath, lambda path: path], ids=["str", "fspath", "Path"])
def test_paths_of_every_kind(state, tmp_path, kind):
    CheckpointState.save_checkpoint(state, kind(tmp_path / "saved"))
    again = CheckpointState.load_checkpoint(kind(tmp_path / "saved"))
    for name, parameter in state.parameters:
        np.testing.assert_array_equal(again.parameters[name].data, parameter.data)
        assert again.parameters[name].requires_grad == parameter.requires_grad


def trained(folder, steps: int = 3):
    module = load_module(folder)
    optimizer = load_optimizer(folder, module)
    optimizer.set_learning_rate(0.0123456789)
    for _ in range(steps):
        module(*batch_of().values())
        optimizer.step()
        module.lazy_reset_grad()
    return module, optimizer


def test_a_saved_state_goes_on_where_it_was(folder, tmp_path):
    module, optimizer = trained(folder)
    CheckpointState.save_checkpoint(module.state, tmp_path / "on", include_optimizer_state=True)
    optimizer_path = folder / "optimizer_model.onnx"
    again = load_module(folder, tmp_path / "on")
    more = type(optimizer)(optimizer_path, again)
    assert more.steps_taken == 3
    assert more.get_learning_rate() == 0.0123456789
    for both in ((module, optimizer), (again, more)):
        both[0](*batch_of().values())
        both[1].step()
    for name, parameter in module.state.parameters:
        np.testing.assert_array_equal(again.state.parameters[name].data, parameter.data)


def test_the_learning_rate_is_not_a_property_of_the_user(folder, tmp_path):
    module, _ = trained(folder)
    CheckpointState.save_checkpoint(module.state, tmp_path / "on", include_optimizer_state=True)
    assert len(CheckpointState.load_checkpoint(tmp_path / "on").properties) == 0


def test_a_rate_that_only_the_schedule_knows_is_taken(folder, tmp_path):
    data = odtc.read_checkpoint(folder / "checkpoint")
    data.optimizer_groups["group0"] = odtc.OptimizerGroup(step=7, initial_learning_rate=0.25)
    odtc.write_checkpoint(tmp_path / "theirs", data)
    state = CheckpointState.load_checkpoint(tmp_path / "theirs")
    assert (state.optimizer.step, state.optimizer.learning_rate) == (7, 0.25)


def test_parameters_of_another_type_are_refused(folder, tmp_path):
    write_artifacts(tmp_path, mlp(np.float64))
    with pytest.raises(CheckpointError, match="is double, the model declares float"):
        load_module(folder, tmp_path / "checkpoint")


def test_without_optimizer_state_training_starts_afresh(folder, tmp_path):
    module, _ = trained(folder)
    CheckpointState.save_checkpoint(module.state, tmp_path / "off")
    again = load_module(folder, tmp_path / "off")
    optimizer = load_optimizer(folder, again)
    assert optimizer.steps_taken == 0 and optimizer.get_learning_rate() == 0.001


def test_a_nominal_state_has_names_but_no_values(folder):
    state = CheckpointState.load_checkpoint(folder / "nominal_checkpoint")
    assert len(state.parameters) == 4 and "fc1.bias" in state.parameters
    assert "fc1.bias" in repr(state.parameters)
    for access in (
        lambda: state.parameters["fc1.bias"],
        lambda: list(state.parameters),
        lambda: state.parameters.__setitem__("fc1.bias", np.zeros(5, np.float32)),
    ):
        with pytest.raises(CheckpointError, match="nominal: it has names but no values"):
            access()


def test_a_nominal_state_is_saved_as_one(folder, tmp_path):
    module = load_module(folder, "nominal_checkpoint")
    load_optimizer(folder, module)
    state = module.state
    state.properties["epoch"] = 3
    CheckpointState.save_checkpoint(state, tmp_path / "saved", include_optimizer_state=True)
    again = CheckpointState.load_checkpoint(tmp_path / "saved")
    assert again.parameters.nominal and again.optimizer is None
    assert len(again.parameters) == 4 and dict(again.properties) == {"epoch": 3}


def test_parameters_of_other_types_survive(tmp_path):
    tensors = {
        "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
        "brain": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "double": torch.tensor(0.1, dtype=torch.float64),
        "whole": torch.tensor([[1, 2]]),
    }
    state = CheckpointState({n: Parameter(n, t, n == "half") for n, t in tensors.items()})
    CheckpointState.save_checkpoint(state, tmp_path / "types")
    again = CheckpointState.load_checkpoint(tmp_path / "types")
    for name, tensor in tensors.items():
        assert again.parameters[name].tensor.dtype == tensor.dtype
        assert torch.equal(again.parameters[name].tensor, tensor)
