"""Settings that are read from files."""

import json
import pathlib
from typing import Any

import pytest
import torch
from torch import nn

from onnxtrain import ORTModule
from onnxtrain.errors import OptionError
from onnxtrain.ortmodule import DebugOptions, FallbackPolicy, LogLevel
from onnxtrain.ortmodule.experimental.hierarchical_ortmodule import HierarchicalORTModule
from onnxtrain.ortmodule.experimental.json_config import JSON_PATH_ENVIRONMENT_KEY, load_from_json

EVERYTHING: dict[str, Any] = {
    "PropagateCastOps": {"Strategy": "FLOOD_FILL", "Level": 3, "Allow": ["ABC", "DEF"]},
    "UseExternalGPUAllocator": False,
    "EnableCustomAutogradFunction": True,
    "EnableGradAccOptimization": True,
    "UseStaticShape": True,
    "RunSymbolicShapeInference": False,
    "SkipCheck": ["SKIP_CHECK_DEVICE", "SKIP_CHECK_BUILD_GRADIENT", "SKIP_CHECK_EXECUTION_AGENT"],
    "DebugOptions": {"LogLevel": "INFO", "SaveONNX": True, "ONNXPrefix": "mine"},
    "UseMemoryEfficientGradient": True,
    "FallbackPolicy": ["FALLBACK_UNSUPPORTED_DATA", "FALLBACK_UNSUPPORTED_ONNX_MODEL"],
    "OnnxOpsetVersion": 14,
}


def file_of(folder: pathlib.Path, settings: Any) -> pathlib.Path:
    path = folder / "settings.json"
    path.write_text(settings if isinstance(settings, str) else json.dumps(settings))
    return path


def test_settings_have_effect(tmp_path: pathlib.Path) -> None:
    EVERYTHING["DebugOptions"]["SaveONNXPath"] = str(tmp_path)
    wrapped = ORTModule(nn.Linear(4, 2))
    wrapped(torch.ones(3, 4))
    load_from_json(wrapped, file_of(tmp_path, EVERYTHING))
    assert wrapped._options == DebugOptions(LogLevel.INFO, True, "mine", str(tmp_path))
    assert wrapped._policy == (
        FallbackPolicy.FALLBACK_UNSUPPORTED_DATA | FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL
    )
    wrapped(torch.ones(3, 4)).sum().backward()
    assert (tmp_path / "mine_execution_model_training.onnx").exists()


def test_what_is_not_set_stays(tmp_path: pathlib.Path) -> None:
    wrapped = ORTModule(nn.Linear(4, 2), DebugOptions(log_level=LogLevel.ERROR))
    load_from_json(wrapped, file_of(tmp_path, {"FallbackPolicy": ["FALLBACK_FORCE_TORCH_FORWARD"]}))
    assert wrapped._options.log_level is LogLevel.ERROR
    wrapped(torch.ones(3, 4))
    assert not [*wrapped._all_sessions()]


def test_no_fallback_counts_alone(tmp_path: pathlib.Path) -> None:
    wrapped = ORTModule(nn.Linear(4, 2))
    load_from_json(wrapped, file_of(tmp_path, {"FallbackPolicy": [*FallbackPolicy.__members__]}))
    with pytest.raises(Exception, match="arguments of a module"):
        wrapped(object())


def test_parts_have_the_settings_of_the_whole(tmp_path: pathlib.Path) -> None:
    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.part(x)
            return y if y.sum() > 1e9 else y + 1

    wrapped = HierarchicalORTModule(Looking())
    wrapped(torch.ones(3, 4))
    debug = {"SaveONNX": True, "ONNXPrefix": "p", "SaveONNXPath": str(tmp_path)}
    load_from_json(wrapped, file_of(tmp_path, {"DebugOptions": debug}))
    wrapped(torch.ones(3, 4))
    assert (tmp_path / "p_part_execution_model_training.onnx").exists()


def test_the_variable_comes_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = ORTModule(nn.Linear(4, 2))
    with pytest.raises(OptionError, match=f"give its path, or set {JSON_PATH_ENVIRONMENT_KEY}"):
        load_from_json(wrapped)
    path = file_of(tmp_path, {"DebugOptions": {"LogLevel": "FATAL"}})
    monkeypatch.setenv("ORTMODULE_JSON_CONFIG_PATH", str(path))
    load_from_json(wrapped, tmp_path / "none.json")
    assert wrapped._options.log_level is LogLevel.FATAL


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"SkipChecks": []},
            "no setting 'SkipChecks', which '.*settings.json' has as 'SkipChecks'",
        ),
        (
            {"DebugOptions": {"Level": 1}},
            r"setting 'Level', .* has as 'DebugOptions.Level'\n  have  LogLevel, SaveONNX, ONNXP",
        ),
        ({"UseStaticShape": 1}, "'UseStaticShape' in '.*' is 1\n  it has to be true or false"),
        ({"OnnxOpsetVersion": True}, "is true\n  it has to be a whole number"),
        (
            {"PropagateCastOps": {"Strategy": "FLOOD"}},
            "'PropagateCastOps.Strategy' in '.*' is \"FLOOD\"\n  it has to be one of NONE, INSERT",
        ),
        ({"PropagateCastOps": 3}, "'PropagateCastOps' in '.*' is no object\n  have  Strategy"),
        ({"FallbackPolicy": []}, "a list of one or more, each one of FALLBACK_DISABLE"),
        ({"SkipCheck": ["SKIP_ALL"]}, r'is \["SKIP_ALL"\]'),
        ([], "settings.json' is no object"),
        ("{", "settings.json' are no JSON: .*line 1"),
    ],
)
def test_what_is_no_setting(tmp_path: pathlib.Path, settings: Any, message: str) -> None:
    wrapped = ORTModule(nn.Linear(4, 2))
    before = wrapped._options
    with pytest.raises(OptionError, match=message):
        load_from_json(wrapped, file_of(tmp_path, settings))
    assert wrapped._options is before


def test_what_cannot_be_read(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OptionError, match=r"none.json' cannot be read: .*No such file"):
        load_from_json(ORTModule(nn.Linear(4, 2)), tmp_path / "none.json")
    with pytest.raises(OptionError, match="settings are those of an ORTModule, not Linear"):
        load_from_json(nn.Linear(4, 2), tmp_path / "none.json")  # type: ignore[arg-type]
