"""Budgets and manners of the source."""

import ast
import dataclasses
import functools
import pathlib
import re

import onnxtrain

SOURCE = pathlib.Path(onnxtrain.__file__).parent
TESTS = pathlib.Path(__file__).parent
LONGEST_FILE = 400
LONGEST_FUNCTION = 60
"""Lines of a function's body, without its signature and docstring."""
MARKS = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
MAY_PRINT = {"cli", "demo"}
"""Packages that talk to a person at a terminal."""
DRAWERS = {"utils.py", "util.py", "helpers.py", "misc.py", "common.py"}

OURS = sorted(SOURCE.rglob("*.py"))
ALL = OURS + sorted(TESTS.rglob("*.py"))


def shown(lines: list[str]) -> str:
    return "\n" + "\n".join(lines)


def test_there_is_something_to_look_at() -> None:
    assert len(OURS) > 100 and pathlib.Path(__file__) in ALL


def test_files_are_short() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in ALL}
    long = [f"{path} has {size} lines" for path, size in sizes.items() if size > LONGEST_FILE]
    assert not long, shown(long)


@dataclasses.dataclass(frozen=True)
class Facts:
    """Whether a file says what it is for, lines of its functions by place, and who prints."""

    described: bool
    functions: dict[str, int]
    prints: list[str]


@functools.cache
def facts(path: pathlib.Path) -> Facts:
    """What several tests ask, so that a file is parsed once."""
    tree, sizes, prints = ast.parse(path.read_text()), {}, []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            size = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            sizes[f"{path}:{node.lineno} {node.name}"] = size
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            prints += [f"{path}:{node.lineno}"] if node.func.id == "print" else []
    return Facts(not tree.body or bool(ast.get_docstring(tree)), sizes, prints)


def test_functions_are_short() -> None:
    long = [
        f"{place} has {size} lines"
        for path in ALL
        for place, size in facts(path).functions.items()
        if size > LONGEST_FUNCTION
    ]
    assert not long, shown(long)


def test_nothing_is_left_for_later() -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in ALL
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if MARKS.search(line)
    ]
    assert not found, shown(found)


def test_modules_say_what_they_are_for() -> None:
    silent = [str(path) for path in OURS if not facts(path).described]
    assert not silent, shown(silent)


def test_libraries_do_not_print() -> None:
    calls = [
        place
        for path in OURS
        if path.relative_to(SOURCE).parts[0] not in MAY_PRINT
        for place in facts(path).prints
    ]
    assert not calls, shown(calls)


def test_no_module_is_a_drawer() -> None:
    found = [str(path) for path in ALL if path.name in DRAWERS]
    assert not found, shown(found)
