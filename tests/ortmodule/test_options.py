"""Options of modules that onnxtrain runs, and the files that they ask for."""

import importlib
import pathlib

import onnx
import pytest
import torch
from torch import nn

import onnxtrain
from onnxtrain.errors import OptionError
from onnxtrain.ortmodule import DebugOptions, FallbackPolicy, LogLevel, ORTModule
from onnxtrain.ortmodule.layout import Layout, other_sizes, symbols_fit
from onnxtrain.ortmodule.options import fallback_policy, recomputed
from onnxtrain.transforms.recompute.again import SUFFIX


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


class Residual(nn.Module):
    """Layers of which only what they begin with has to be kept."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8)) for _ in range(6))
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_layers_are_computed_again_if_that_is_asked_for(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    module, x, found = Residual(), torch.randn(16, 8), {}
    for level in ("0", "1"):
        monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", level)
        options = DebugOptions(save_onnx=True, onnx_prefix=level, save_path=str(tmp_path))
        wrapped = ORTModule(module, options)
        module.zero_grad()
        wrapped(x).square().sum().backward()
        model = onnx.load(tmp_path / f"{level}_execution_model_training.onnx")
        twice = {node.op_type for node in model.graph.node if node.name.endswith(SUFFIX)}
        found[level] = twice, [p.grad.clone() for p in module.parameters()]
    assert not found["0"][0] and {"Gelu", "Gemm"} <= found["1"][0]
    assert all(map(torch.equal, found["0"][1], found["1"][1]))
    monkeypatch.setenv("ORTMODULE_MEMORY_OPT_LEVEL", "3")
    with pytest.raises(OptionError, match=r"ORTMODULE_MEMORY_OPT_LEVEL is '3'\n  have  0, 1, 2"):
        recomputed()


def test_what_the_exporter_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert onnxtrain.is_ortmodule_available()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not onnxtrain.is_ortmodule_available()
    with pytest.raises(OptionError, match=r"onnxscript\n  pip install 'onnxtrain\[ortmodule\]'"):
        ORTModule(nn.Linear(4, 2))


def test_what_is_not_here_says_what_to_use() -> None:
    with pytest.raises(ImportError, match=r"give deepspeed\.pipe\.PipelineModule layers"):
        importlib.import_module("onnxtrain.ortmodule.experimental.pipe")
    with pytest.raises(AttributeError, match="here training is set up by the arguments of Trainer"):
        _ = onnxtrain.TrainingParameters


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
