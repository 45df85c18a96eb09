"""Options of modules that onnxtrain runs, and the files that they ask for."""

import pathlib

import onnx
import pytest
import torch
from torch import nn

from onnxtrain.errors import OptionError
from onnxtrain.ortmodule import DebugOptions, FallbackPolicy, LogLevel, ORTModule
from onnxtrain.ortmodule.layout import Layout, other_sizes, symbols_fit
from onnxtrain.ortmodule.options import fallback_policy


def test_models_are_saved(tmp_path: pathlib.Path) -> None:
    options = DebugOptions(save_onnx=True, onnx_prefix="mine", save_path=str(tmp_path))
    wrapped = ORTModule(nn.Linear(4, 2), options)
    wrapped(torch.ones(3, 4)).sum().backward()
    wrapped.eval()
    with torch.no_grad():
        wrapped(torch.ones(3, 4))
    assert sorted(path.name for path in tmp_path.glob("*.onnx")) == [
        "mine_execution_model_inference.onnx",
        "mine_execution_model_training.onnx",
        "mine_torch_exported_inference.onnx",
        "mine_torch_exported_training.onnx",
    ]
    model = onnx.load(tmp_path / "mine_execution_model_training.onnx")
    assert "YieldOp" in [node.op_type for node in model.graph.node]
    assert [value.name for value in model.graph.output] != []


def test_options_that_make_no_sense(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OptionError, match="onnx_prefix"):
        DebugOptions(save_onnx=True)
    with pytest.raises(OptionError, match="is no folder"):
        DebugOptions(save_onnx=True, onnx_prefix="a", save_path=str(tmp_path / "missing"))


def test_variables_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "INFO")
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_UNSUPPORTED_DATA")
    assert DebugOptions().log_level is LogLevel.INFO
    assert fallback_policy() is FallbackPolicy.FALLBACK_UNSUPPORTED_DATA
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "LOUD")
    with pytest.raises(OptionError, match=r"ORTMODULE_LOG_LEVEL is 'LOUD'\n  have  VERBOSE"):
        DebugOptions()


def test_torch_alone_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_FORCE_TORCH_FORWARD")
    wrapped = ORTModule(nn.Linear(4, 2))
    wrapped(torch.ones(3, 4)).sum().backward()
    assert wrapped.weight.grad is not None
    assert not [*wrapped._all_sessions()]


def test_a_layout_gives_back_what_it_was_made_of() -> None:
    a, b = torch.ones(1), torch.zeros(2)
    layout, tensors = Layout.of(([a, {"x": None, "y": (b, 3)}],))
    assert tensors == [a, b]
    assert layout.filled(["first", "second"]) == (["first", {"x": None, "y": ("second", 3)}],)
    same, _ = Layout.of(([b, {"x": None, "y": (a, 3)}],))
    other, _ = Layout.of(([b, {"x": None, "y": (a, 3.0)}],))
    assert same.key() == layout.key() != other.key()


def test_sizes_that_fit() -> None:
    declared = [["n", 3], ["n", "m"]]
    assert symbols_fit(declared, [torch.ones(2, 3), torch.ones(2, 9)])
    assert not symbols_fit(declared, [torch.ones(2, 4), torch.ones(2, 9)])
    assert not symbols_fit(declared, [torch.ones(2, 3), torch.ones(5, 9)])


def test_sizes_that_are_others() -> None:
    declared = [["n", 3], [], ["n", "m", 2, 1]]
    assert (
        other_sizes(declared, [torch.ones(2, 3), torch.ones(()), torch.ones(5, 9, 2, 1)]) == set()
    )
    found = other_sizes(declared, [torch.ones(2, 4), torch.ones(()), torch.ones(2, 9, 3, 1)])
    assert found == {(0, 1), (2, 2)}
