"""Settings of an ORTModule from a JSON file, as onnxruntime-training reads them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import operator
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from onnxtrain.errors import OptionError
from onnxtrain.ortmodule.module import ORTModule
from onnxtrain.ortmodule.options import (
    DebugOptions,
    FallbackPolicy,
    LogLevel,
    PropagateCastOpsStrategy,
    SkipCheck,
)

JSON_PATH_ENVIRONMENT_KEY = "ORTMODULE_JSON_CONFIG_PATH"
"""The variable of the environment that comes before the path that is given."""
Path = str | os.PathLike[str]


def load_from_json(ortmodule: ORTModule, path: Path | None = None) -> None:
    """Set what a file says. The module is exported anew.

    ``DebugOptions`` and ``FallbackPolicy`` have effect. The other settings of onnxruntime are taken
    if they are what they can be, and change nothing: they tune its own engine.

    Args:
        ortmodule: The module.
        path: The file; ``ORTMODULE_JSON_CONFIG_PATH`` comes first.

    Raises:
        OptionError: if there is no path, or something else in the file than settings.
    """
    if not isinstance(ortmodule, ORTModule):
        raise OptionError(f"settings are those of an ORTModule, not {type(ortmodule).__name__}")
    path = os.environ.get(JSON_PATH_ENVIRONMENT_KEY) or path
    if path is None:
        raise OptionError(
            f"there is no file of settings\n  give its path, or set {JSON_PATH_ENVIRONMENT_KEY}"
        )
    found = _File(path).read(_SETTINGS)
    options, policy = ortmodule._options, ortmodule._policy
    if (debug := found.get("DebugOptions")) is not None:
        options = DebugOptions(**{_DEBUG_NAMES[key]: value for key, value in debug.items()})
    if (names := found.get("FallbackPolicy")) is not None:
        policy = functools.reduce(operator.or_, names)
        if FallbackPolicy.FALLBACK_DISABLE in policy:  # beside others it counts alone
            policy = FallbackPolicy.FALLBACK_DISABLE
    ortmodule._set(options, policy)


@dataclasses.dataclass(frozen=True)
class _Kind:
    """What a setting may be: a word for errors, and what makes a value of it, or ValueError."""

    text: str
    of: Callable[[Any], Any]


E = TypeVar("E", bound=enum.Enum)
_Settings = Mapping[str, "_Kind | _Settings"]


def _exactly(text: str, kind: type) -> _Kind:
    def of(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError
        return value

    return _Kind(text, of)


def _name_in(kind: type[E]) -> _Kind:
    def of(value: Any) -> E:
        if not isinstance(value, str) or value not in kind.__members__:
            raise ValueError
        return kind[value]

    return _Kind(f"one of {', '.join(kind.__members__)}", of)


def _list_of(kind: _Kind, *, least: int = 0) -> _Kind:
    def of(value: Any) -> Sequence[Any]:
        if not isinstance(value, list) or len(value) < least:
            raise ValueError
        return [kind.of(each) for each in value]

    return _Kind(f"a list of {'one or more, ' if least else ''}each {kind.text}", of)


_FLAG = _exactly("true or false", bool)
_NUMBER = _exactly("a whole number", int)
_WORD = _exactly("a text", str)
_SETTINGS: _Settings = {
    "PropagateCastOps": {
        "Strategy": _name_in(PropagateCastOpsStrategy),
        "Level": _NUMBER,
        "Allow": _list_of(_WORD),
    },
    "UseExternalGPUAllocator": _FLAG,
    "EnableCustomAutogradFunction": _FLAG,
    "EnableGradAccOptimization": _FLAG,
    "RunSymbolicShapeInference": _FLAG,
    "UseStaticShape": _FLAG,
    "SkipCheck": _list_of(_name_in(SkipCheck), least=1),
    "DebugOptions": {
        "LogLevel": _name_in(LogLevel),
        "SaveONNX": _FLAG,
        "ONNXPrefix": _WORD,
        "SaveONNXPath": _WORD,
    },
    "UseMemoryEfficientGradient": _FLAG,
    "FallbackPolicy": _list_of(_name_in(FallbackPolicy), least=1),
    "OnnxOpsetVersion": _NUMBER,
}
_DEBUG_NAMES = {
    "LogLevel": "log_level",
    "SaveONNX": "save_onnx",
    "ONNXPrefix": "onnx_prefix",
    "SaveONNXPath": "save_path",
}


class _File:
    """A file of settings.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self._path = pathlib.Path(path)

    def read(self, settings: _Settings) -> dict[str, Any]:
        """What it sets, by key."""
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise OptionError(f"the settings '{self._path}' cannot be read: {error}") from error
        except ValueError as error:
            raise OptionError(f"the settings '{self._path}' are no JSON: {error}") from error
        return self._checked(data, settings, "")

    def _checked(self, data: Any, settings: _Settings, place: str) -> dict[str, Any]:
        if not isinstance(data, dict):
            what = f"'{place}' in '{self._path}'" if place else f"'{self._path}'"
            raise OptionError(f"{what} is no object\n  have  {', '.join(settings)}")
        found = {}
        for key, value in data.items():
            own = f"{place}.{key}" if place else key
            if key not in settings:
                raise OptionError(
                    f"there is no setting '{key}', which '{self._path}' has as '{own}'\n"
                    f"  have  {', '.join(settings)}"
                )
            kind = settings[key]
            if not isinstance(kind, _Kind):
                found[key] = self._checked(value, kind, own)
                continue
            try:
                found[key] = kind.of(value)
            except ValueError:
                raise OptionError(
                    f"'{own}' in '{self._path}' is {json.dumps(value)}\n  it has to be {kind.text}"
                ) from None
        return found
