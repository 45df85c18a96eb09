"""Options of a verb from a file: YAML or JSON, by the options' own names; flags win over it."""

from __future__ import annotations

import pathlib
from typing import Any

import typer

from onnxtrain.cli.near import nearest
from onnxtrain.cli.usage import OTHER_NAMES
from onnxtrain.errors import OptionError


def load(ctx: typer.Context, path: pathlib.Path | None) -> pathlib.Path | None:
    """Make the values of a file the defaults of a verb's options.

    Raises:
        OptionError: if the file is missing or damaged, or has a name that is no option.
    """
    if path is not None and not ctx.resilient_parsing:
        names = _names(ctx.command)
        given = {_option(path, str(k), names): _plain(v) for k, v in _read(path).items()}
        for name in _repeated(ctx.command) & given.keys():
            if given[name] is not None and not isinstance(given[name], list):
                given[name] = [str(given[name])]
        ctx.default_map = {**(ctx.default_map or {}), **given}
    return path


def one_of(ctx: typer.Context, given: dict[str, Any], first: str, second: str) -> None:
    """Of two options that say the same in other words, leave the one of the command line.

    Raises:
        OptionError: if both were given there, or both in the file.
    """
    sources = {name: ctx.get_parameter_source(name) for name in (first, second)}
    kinds = {name: "" if source is None else source.name for name, source in sources.items()}
    told = [n for n, kind in kinds.items() if kind != "DEFAULT" and given[n] is not None]
    if len(told) == 2 and kinds[first] == kinds[second]:
        raise OptionError(
            f"give --{first} {given[first]} or --{second} {given[second]}, not both\n"
            "  each says how long to train"
        )
    if len(told) == 2 and kinds[first] == "COMMANDLINE":
        given[second] = None


def _names(command: Any) -> dict[str, str]:
    """Parameters of a verb by their names as options, with underscores."""
    names = {}
    for parameter in command.params:
        for flag in parameter.opts:
            names[flag.lstrip("-").replace("-", "_")] = str(parameter.name)
    names.pop("config", None)
    return names


def _repeated(command: Any) -> set[str]:
    """Parameters of a verb that may be given several times."""
    return {str(one.name) for one in command.params if getattr(one, "multiple", False)}


def _option(path: pathlib.Path, key: str, names: dict[str, str]) -> str:
    name = key.replace("-", "_")
    if name not in names:
        other = OTHER_NAMES.get(f"--{name.replace('_', '-')}", "").split(" ")[0].lstrip("-")
        other = other.replace("-", "_")
        close = other if other in names else nearest(name, names, 0.6)
        cure = f"did you mean  {close}" if close else f"have  {', '.join(sorted(names))}"
        raise OptionError(f"'{path}' has '{key}', which is no option\n  {cure}")
    return names[name]


def _read(path: pathlib.Path) -> dict[Any, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise OptionError(
            f"there is no file '{path}' for --config\n"
            "  name a file with a line such as  loss: cross_entropy"
        ) from None
    except UnicodeDecodeError:
        raise OptionError(
            f"cannot read '{path}': it is no text in UTF-8\n"
            "  --config takes a YAML or JSON file with lines such as  loss: cross_entropy"
        ) from None
    except OSError as error:
        raise OptionError(f"cannot read '{path}': {error.strerror or error}") from error
    found = _json(path, text) if path.suffix.lower() == ".json" else _yaml(path, text)
    if not isinstance(found, dict):
        raise OptionError(
            f"'{path}' is no table of options\n  write a line such as  loss: cross_entropy"
        )
    return found


def _json(path: pathlib.Path, text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except RecursionError:
        raise _too_deep(path) from None
    except ValueError as error:
        raise OptionError(f"cannot read '{path}': {error}") from error


def _yaml(path: pathlib.Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise OptionError(
            f"cannot read '{path}': PyYAML is not installed\n"
            "  pip install 'onnxtrain[data]', or write the options as .json"
        ) from None
    try:
        return yaml.safe_load(text) or {}
    except RecursionError:
        raise _too_deep(path) from None
    except yaml.YAMLError as error:
        raise OptionError(f"cannot read '{path}': {error}") from error


def _too_deep(path: pathlib.Path) -> OptionError:
    return OptionError(
        f"cannot read '{path}': it has too many lists within lists\n"
        "  write a line such as  loss: cross_entropy"
    )


def _plain(value: Any) -> Any:
    """A value as it would stand on the command line; a table as a list of KEY=VALUE."""
    if isinstance(value, dict):
        return [f"{key}={item}" for key, item in value.items()]
    if isinstance(value, list):
        return [str(item) for item in value]
    return value
