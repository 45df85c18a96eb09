"""Who may import whom, read off the import statements."""

import ast
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import onnxtrain

ROOT = pathlib.Path(onnxtrain.__file__).parent
BASE = {"types", "errors"}
OFFLINE = {
    "types": set(),
    "errors": set(),
    "unrunnable": {"types"},
    "files": BASE,  # how any file is written: entirely, or not at all
    "amp": BASE,  # numbers only: how much to scale a loss, for whoever runs the steps
    "graph": BASE,
    "gradients": BASE | {"files", "graph", "unrunnable"},
    "transforms": BASE | {"graph", "gradients"},
    "formats": BASE | {"files", "graph", "transforms"},
    "onnxblock": BASE | {"graph", "gradients", "transforms", "formats"},
    "artifacts": BASE | {"files", "graph", "gradients", "transforms", "formats", "onnxblock"},
}
"""What each package of the half without torch may import."""
ONLINE = {
    "distributed": BASE,
    "kernels": BASE | {"distributed", "unrunnable"},
    "runtime": BASE | {"distributed", "graph", "transforms", "kernels"},
    "training": BASE
    | {"distributed", "graph", "transforms", "formats", "onnxblock", "kernels", "runtime"},
}
ALLOWED = OFFLINE | ONLINE
TOP = {"__init__", "__main__", "api", "backend", "cli", "data", "demo", "derivative"}
"""Packages that may import everything, and that nothing below may import."""
TOP |= {"environment", "testing"}
TOP |= {"experimental", "optim", "ort_triton", "ortmodule", "utils"}  # for users of torch modules
NEVER_OFFLINE = {"torch", "triton"}


def imports(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports, in functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "onnxtrain":
            yield from ((node.lineno, f"onnxtrain.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def package(path: pathlib.Path, root: pathlib.Path = ROOT) -> str:
    """The package (or top-level module) of the project that a file belongs to."""
    return path.relative_to(root).parts[0].removesuffix(".py")


def violations(path: pathlib.Path, own: str) -> Iterator[str]:
    """Imports of a file that its package may not make, with the rule."""
    for line, name in imports(path):
        first, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if first == "onnxtrain" and target != own and target not in ALLOWED[own]:
            allowed = ", ".join(sorted(ALLOWED[own])) or "nothing"
            yield f"{path}:{line}: imports {name}, but {own} may import {allowed} of onnxtrain"
        if own in OFFLINE and first in NEVER_OFFLINE:
            yield f"{path}:{line}: imports {name}, but {own} must work without {first}"


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("own", ALLOWED)
def test_imports_point_one_way(own: str) -> None:
    files = [path for path in FILES if package(path) == own]
    assert files, f"there is no package {own}"
    found = [text for path in files for text in violations(path, own)]
    assert not found, "\n".join(found)


def test_every_package_has_a_place() -> None:
    assert {package(path) for path in FILES} - ALLOWED.keys() - TOP == set()


def test_the_rule_that_people_read_has_every_package() -> None:
    page = (pathlib.Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
    rule = page.split("## The import rule")[1].split("## ")[0]
    known = {name for name in ALLOWED.keys() | TOP if not name.startswith("__")}
    assert known <= set(re.findall(r"\w+", rule))


def test_no_package_is_both_left_and_right_of_another() -> None:
    pairs = [
        (a, b) for a in ALLOWED for b in ALLOWED[a] if a < b and a in ALLOWED.get(b, ()) and a != b
    ]
    assert pairs == []


def test_a_wrong_import_is_found(tmp_path: pathlib.Path) -> None:
    wrong = tmp_path / "bad.py"
    wrong.write_text("import torch.nn\n\ndef f():\n    from onnxtrain.kernels import registry\n")
    assert list(violations(wrong, "graph")) == [
        f"{wrong}:1: imports torch.nn, but graph must work without torch",
        f"{wrong}:4: imports onnxtrain.kernels, but graph may import errors, types of onnxtrain",
    ]


@pytest.mark.parametrize("module", ["onnxtrain", "onnxtrain.artifacts", "onnxtrain.onnxblock"])
def test_the_offline_half_never_loads_torch(module: str) -> None:
    code = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
