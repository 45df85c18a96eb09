"""Budgets and manners of the source."""

import ast
import pathlib
import re

import pytest

import onnxtrain

SOURCE = pathlib.Path(onnxtrain.__file__).parent
TESTS = pathlib.Path(__file__).parent
LONGEST_FILE = 400
LONGEST_FUNCTION = 60
MARKS = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
MAY_PRINT = {"cli", "demo"}
"""Packages that talk to a person at a terminal."""


def _params(paths: list[pathlib.Path], root: pathlib.Path) -> list[object]:
    return [pytest.param(path, id=str(path.relative_to(root))) for path in sorted(paths)]


OURS = _params(list(SOURCE.rglob("*.py")), SOURCE)
ALL = OURS + _params(list(TESTS.rglob("*.py")), TESTS.parent)


@pytest.mark.parametrize("path", ALL)
def test_files_are_short(path: pathlib.Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("path", ALL)
def test_functions_are_short(path: pathlib.Path) -> None:
    long = [
        f"{path}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("path", ALL)
def test_nothing_is_left_for_later(path: pathlib.Path) -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if MARKS.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", OURS)
def test_modules_say_what_they_are_for(path: pathlib.Path) -> None:
    tree = ast.parse(path.read_text())
    assert not tree.body or ast.get_docstring(tree)


@pytest.mark.parametrize("path", OURS)
def test_libraries_do_not_print(path: pathlib.Path) -> None:
    if path.relative_to(SOURCE).parts[0] in MAY_PRINT:
        return
    calls = [
        f"{path}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not calls, "\n".join(calls)


def test_no_module_is_a_drawer() -> None:
    names = {path.name for path in SOURCE.rglob("*.py")}
    assert not names & {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}
