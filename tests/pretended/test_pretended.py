"""A pretended GPU refuses what a GPU refuses, takes what is right, and says what it cannot tell."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from pretended import native
from pretended.limits import LIMITS

HERE = pathlib.Path(__file__).parent
FILES = ("test_refusals.py", "test_steps.py", "planted.py")
here = pytest.mark.skipif(native.obstacle() is not None, reason=str(native.obstacle()))
Outcomes = dict[str, dict[str, tuple[str, str]]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What became of every test, and why, by file."""
    report = tmp_path_factory.mktemp("pretended") / "report.xml"
    paths = [str(HERE.parent), *sys.path]
    command = [sys.executable, "-m", "pytest", "-p", "pretended.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-q", "-m", "gpu", f"--junitxml={report}", *(str(HERE / f) for f in FILES)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    found: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = f"{case.attrib['classname'].split('.')[-1]}.py"
        kind, why = next(((e.tag, str(e.attrib.get("message"))) for e in case), ("passed", ""))
        found.setdefault(file, {})[case.attrib["name"]] = kind, why
    return found


@here
@pytest.mark.parametrize("file", ["test_refusals.py", "test_steps.py"])
def test_what_holds_on_a_gpu_holds_on_a_pretended_one(outcomes: Outcomes, file: str) -> None:
    assert outcomes[file]
    others = {name: why for name, why in outcomes[file].items() if why[0] != "passed"}
    assert not others


@here
def test_what_cannot_be_told_is_not_judged(outcomes: Outcomes) -> None:
    for name, (kind, why) in outcomes["planted.py"].items():
        _, wanted, limit, *_ = name.split("_")
        assert kind == wanted, (name, why)
        if kind == "skipped":
            assert why.endswith(f"NotJudged: {limit}: {LIMITS[limit]}")
    words = " ".join(outcomes["planted.py"])
    assert set(re.findall(r"test_skipped_([a-z]+)", words)) == set(LIMITS)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(native.runpy, "run_path", lambda path: {"cuda": None})
    monkeypatch.setenv("CXX", "no-such-compiler")
    reason = native.obstacle()
    assert reason is not None and "C++ compiler" in reason
    with pytest.raises(native.CannotPretend, match=re.escape(reason)):
        native.load()


def test_beside_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(native.runpy, "run_path", lambda path: {"cuda": "13.0"})
    assert "without CUDA" in str(native.obstacle())


@here
def test_after_torch_it_says_so() -> None:
    assert "torch" in sys.modules
    with pytest.raises(native.CannotPretend, match="imported already"):
        native.load()
