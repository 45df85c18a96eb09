"""Every code block of the documentation runs, and prints what the page says it does.

The blocks of a page run in their order, in one empty folder that has ``examples/`` in it:

- a block with a title is a file of that name,
- ``python`` blocks share one namespace,
- ``sh`` blocks hold commands; ``onnxtrain`` and ``python`` run in this process,
- a ``text`` block is what the block before it prints: ``...`` stands for anything, and numbers with
  a point may differ by two per cent, since they are not the same on every processor.
"""

import contextlib
import csv
import dataclasses
import importlib
import inspect
import io
import itertools
import math
import os
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

import onnxtrain
from onnxtrain import errors
from onnxtrain.cli import app
from onnxtrain.cli.fitting import progress
from onnxtrain.errors import OnnxTrainError
from onnxtrain.gradients import external, rules
from onnxtrain.kernels.library import default_registry
from onnxtrain.kernels.registry import RESOURCES, kernel
from onnxtrain.ortmodule.graph_optimizer_registry import GraphOptimizerRegistry

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
GENERATED = {"operators.md"}
PAGES = [ROOT / "README.md", *(p for p in sorted(DOCS.glob("*.md")) if p.name not in GENERATED)]
LINKING = [*PAGES, *(ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING"))]
LAUNCHERS = ("torchrun", "mpiexec")
FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
NUMBER = r"\d+\.\d+(?:e[+-]?\d+)?"
PART = re.compile(rf"(\.\.\.|{NUMBER})")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
NAME = re.compile(r"`(onnxtrain(?:\.\w+)+)`")
_NAMES_OF_KERNEL = {"op", "more_ops", "domain", "types"}


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block, and where it stands."""

    language: str
    title: str
    text: str
    place: str


def blocks(page: pathlib.Path) -> list[Block]:
    text = page.read_text()
    assert text.count("\n```") == 2 * len(FENCE.findall(text)), f"{page}: a fence is not understood"
    places = [(found, text.count("\n", 0, found.start()) + 1) for found in FENCE.finditer(text)]
    return [Block(m[1], m[2] or "", m[3], f"{page.name}:{line}") for m, line in places]


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """An empty folder; what a page registers or imports is forgotten afterwards."""
    rules.load_rules()
    for holder, name in (
        (rules, "_RULES"),
        (external, "_DEFINED"),
        (default_registry(), "_kernels"),
    ):
        known = getattr(holder, name)
        monkeypatch.setattr(holder, name, {key: value.copy() for key, value in known.items()})
    known = GraphOptimizerRegistry._registered
    monkeypatch.setattr(GraphOptimizerRegistry, "_registered", known.copy())
    # a line in between, where an epoch takes long, is not what a page shows
    monkeypatch.setattr(progress, "LINE_SECONDS", math.inf)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def marked(page: pathlib.Path) -> object:
    starts = any(f"\n{name} " in page.read_text() for name in LAUNCHERS)
    return pytest.param(page, id=page.stem, marks=pytest.mark.multi if starts else ())


@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_page(page: pathlib.Path, folder: pathlib.Path) -> None:
    namespace = {"__name__": "__main__"}
    printed: str | None = None
    found = blocks(page)
    for block, following in itertools.zip_longest(found, found[1:]):
        expected = following if following is not None and following.language == "text" else None
        if block.title:
            (folder / block.title).write_text(block.text)
        elif block.language == "python":
            printed = run_python(block, namespace, may_fail=expected is not None)
        elif block.language == "sh":
            printed = "".join(run_command(block, line) for line in commands(block.text))
        elif block.language == "text":
            assert printed is not None, f"{block.place}: nothing was run that could print this"
            assert_same(block, printed)
        else:
            assert block.language == "diff", f"{block.place}: {block.language!r} is not run"


def run_python(block: Block, namespace: dict[str, object], may_fail: bool) -> str:
    """What a block prints; an error of ours that the page shows is printed too."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(block.text, block.place, "exec"), namespace)
        except OnnxTrainError as error:
            if not may_fail:
                raise
            print(f"{type(error).__name__}: {error}")
    return out.getvalue()


def commands(text: str) -> list[str]:
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def run_command(block: Block, line: str) -> str:
    """What a command prints."""
    line, _, last = line.partition(" | tail -n ")
    words = shlex.split(line, comments=True)
    if "--processes" in words:
        return launch(["python", "-m", "onnxtrain.cli", *words[1:]])
    if words[0] == "onnxtrain":
        printed = run_verb(words[1:])
        return "\n".join(printed.splitlines()[-int(last) :]) if last else printed
    if words[0] == "python":
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            runpy.run_path(words[1], run_name="__main__")
        return out.getvalue()
    if words[0] in LAUNCHERS:
        return launch(words)
    if words[0] == "make":
        assert f"\n{words[1]}: " in (ROOT / "Makefile").read_text(), block.place
    else:
        assert words[0] in ("pip", "git", "cd"), f"{block.place}: {words[0]} is not run"
    return ""


def run_verb(words: list[str]) -> str:
    """What a verb prints; only ``diff`` fails without an error, where it finds differences."""
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in result.output and "\x1b" not in result.output
    failed = result.exit_code != 0 and words[0] != "diff"
    assert failed == ("error: " in result.output.lower()), result.output
    return result.output


def launch(words: list[str]) -> str:
    """What several processes print, started by a launcher beside this interpreter."""
    beside = str(pathlib.Path(sys.executable).parent)
    path = shutil.which(words[0], path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"there is no {words[0]}")
    done = subprocess.run(
        [path, *words[1:]],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(pathlib.Path(onnxtrain.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_same(block: Block, printed: str) -> None:
    wanted, found = lines_of(block.text), lines_of(printed)
    fits = len(wanted) == len(found) and all(map(same_line, wanted, found))
    assert fits, f"{block.place}: the page says\n{block.text}\nbut this was printed\n{printed}"


def lines_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def same_line(wanted: str, found: str) -> bool:
    """Whether a line is the wanted one but for what ``...`` stands for and for last digits."""
    parts = PART.split(wanted)
    kinds = {"": re.escape, ".": lambda _: ".*?", "0": lambda _: f"({NUMBER})"}
    match = re.fullmatch("".join(kinds[kind_of(part)](part) for part in parts), found)
    numbers = [part for part in parts if kind_of(part) == "0"]
    return match is not None and all(map(close, numbers, match.groups()))


def kind_of(part: str) -> str:
    if part == "...":
        return "."
    return "0" if re.fullmatch(NUMBER, part) else ""


def close(wanted: str, found: str) -> bool:
    """Whether numbers agree to two per cent, or to the last digit that is shown."""
    a, b = float(wanted), float(found)
    digits = len(wanted.partition(".")[2].partition("e")[0])
    return abs(a - b) <= 0.02 * abs(a) + (0 if "e" in wanted else 10.0**-digits)


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
    links = LINK.findall(page.read_text())
    lost = [link for link in links if not (page.parent / link).exists()]
    assert not lost, f"{page}: {lost}"


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.stem)
def test_names_of_the_package_exist(page: pathlib.Path) -> None:
    for name in NAME.findall(page.read_text()):
        assert exists(name), f"{page}: there is no {name}"


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parent, _, last = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ImportError:
        return hasattr(resolved(parent), last)
    return True


def resolved(name: str) -> object:
    """A module or a class in one."""
    try:
        return importlib.import_module(name)
    except ImportError:
        parent, _, last = name.rpartition(".")
        return getattr(importlib.import_module(parent), last)


def test_every_page_is_in_the_site() -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    assert not [path.name for path in DOCS.glob("*.md") if f" {path.name}\n" not in listed]


def test_every_error_is_explained() -> None:
    kinds = [name for name, kind in vars(errors).items() if isinstance(kind, type)]
    text = (DOCS / "errors.md").read_text()
    missing = [name for name in kinds if name != "OnnxTrainError" and f"## {name}\n" not in text]
    assert kinds and not missing


def test_every_fact_of_a_kernel_is_explained() -> None:
    facts = [name for name in inspect.signature(kernel).parameters if name not in _NAMES_OF_KERNEL]
    table = (ROOT / "CONTRIBUTING.md").read_text().split("| fact | meaning |")[1].split("2. **")[0]
    (needs,) = [line for line in table.splitlines() if "`needs=" in line]
    assert len(facts) > 12 and not [name for name in facts if f"`{name}" not in table]
    assert set(needs.split("`")[3].split()) == RESOURCES


def test_every_option_of_fit_is_explained() -> None:
    options = [o for p in typer.main.get_command(app).commands["fit"].params for o in p.opts]
    text = (DOCS / "fit.md").read_text()
    missing = [option for option in options if option.startswith("--") and option not in text]
    assert len(options) > 40 and not missing


def test_figures_are_those_of_the_benchmarks() -> None:
    cells = []
    for name in ("steps.csv", "models.csv"):
        with (ROOT / "benchmarks" / "results" / name).open() as file:
            rows = csv.reader(file)
            cells += [float(cell) for row in rows for cell in row if re.fullmatch(NUMBER, cell)]
    section = (ROOT / "README.md").read_text().split("## How it compares")[1].split("## ")[0]
    claimed = [
        figure
        for line in section.splitlines()
        if line.startswith("|")
        for column in line.split("|")[2:]
        for figure in re.findall(r"\d+(?:\.\d+)?", column)
        if "cores" not in column and "H200" not in column
    ]
    measured = {f"{cell:.{places}f}" for cell in cells for places in range(3)}
    assert len(claimed) > 20 and set(claimed) <= measured, set(claimed) - measured
