"""Who may import whom, read off the import statements."""

import ast
import pathlib
from collections.abc import Iterator

import pytest

import onnxtrain

ROOT = pathlib.Path(onnxtrain.__file__).parent
BASE = {"types", "errors"}
OFFLINE = {
    "types": set(),
    "errors": set(),
    "graph": BASE,
    "gradients": BASE | {"graph"},
    "transforms": BASE | {"graph", "gradients"},
    "artifacts": BASE | {"graph", "gradients", "transforms", "onnxblock"},
    "onnxblock": BASE | {"graph", "gradients", "transforms", "artifacts"},
}
ONLINE = {
    "kernels": BASE,
    "runtime": BASE | {"graph", "kernels"},
    "training": BASE | {"graph", "kernels", "runtime", "artifacts"},
}
TOP = {"testing", "cli"}
"""Packages on both halves, which nothing below may import."""
FORBIDDEN_OFFLINE = {"torch", "triton"}
ALLOWED = OFFLINE | ONLINE


def imports(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports, in functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def package(path: pathlib.Path) -> str:
    """The package (or top-level module) of the project that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_package(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "onnxtrain" and len(parts) > 1 else None


FILES = sorted(ROOT.rglob("*.py"))


def violations(
    path: pathlib.Path, allowed: set[str], forbidden: set[str]
) -> Iterator[tuple[int, str, str]]:
    own = package(path)
    for line, name in imports(path):
        inner = imported_package(name)
        if inner is not None and inner != own and (ROOT / inner).with_suffix("").name in KNOWN:
            if inner not in allowed:
                yield line, name, f"{own} may import {', '.join(sorted(allowed)) or 'nothing'}"
        if name.split(".")[0] in forbidden:
            yield line, name, f"{own} must work without {name.split('.')[0]}"


KNOWN = {package(path) for path in FILES} - {"__init__"}


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in FILES if package(p) in ALLOWED]
)
def test_imports_point_one_way(path: pathlib.Path) -> None:
    own = package(path)
    forbidden = FORBIDDEN_OFFLINE if own in OFFLINE else set()
    found = [
        f"{path}:{line}: imports {name}: {rule}"
        for line, name, rule in violations(path, ALLOWED[own], forbidden)
    ]
    assert not found, "\n".join(found)


def test_every_package_has_a_place() -> None:
    above = {"__init__", "testing", "cli", "api", "data", "demo", "trainer", "__main__"}
    assert KNOWN - ALLOWED.keys() - above == set()


def test_the_offline_half_is_not_empty() -> None:
    assert {package(path) for path in FILES} >= {"types", "errors", "graph", "gradients"}


def test_a_wrong_import_is_found(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_layers.ROOT", tmp_path)
    wrong = tmp_path / "graph" / "bad.py"
    wrong.parent.mkdir()
    wrong.write_text("import torch\n\ndef f():\n    from onnxtrain.kernels import registry\n")
    found = [(line, name) for line, name, _ in violations(wrong, BASE, FORBIDDEN_OFFLINE)]
    assert found == [
        (1, "torch"),
        (4, "onnxtrain.kernels"),
        (4, "onnxtrain.kernels.registry"),
    ]
