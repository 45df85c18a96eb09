"""The tests that need a GPU, in several processes that share it.

python tests/gpu.py [--processes 14] [--sanitize after|alone] [-k WHICH] [--logs FOLDER] [files]

Starting and compiling takes a CPU most of the time, so that a GPU serves many processes. Nothing
but pytest is needed; onnxtrain need not be installed. ``--sanitize`` runs the tests of the Triton
kernels under compute-sanitizer, a process for each file, tool and type: after all tests, or alone.
Files that are named are the only ones to run, and run in their order. Mistakes that were planted
must be found first: a tool that looks at nothing is always content.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import torch

ROOT = pathlib.Path(__file__).parents[1]
ONE_TYPE = "not cuda-float32 and not cuda-float16"
"""bfloat16, and tests that have no types."""
ACCESSED = f"({ONE_TYPE} or wide_rows)"
"""Accesses of other types differ in nothing but their width, except that wide rows in float32 have
a kernel of their own."""
SUMMED = ("", ONE_TYPE), (" float32", "cuda-float32")
"""In float32 lanes may round sums differently that are one; products of 16-bit numbers are exact.
Each type is a run of its own."""
RECORDED = "(record or replay)"
"""Tests that cannot run where each tensor has memory of its own, by which memcheck finds more."""
CHECKED = "regex=^(_[a-z]|chain$)"
"""Kernels that are looked at, by their mangled names: ours, not those of torch and its libraries,
which take most of the time."""
MISTAKES = ROOT / "tests" / "kernels" / "planted.py"
PLANTED = {"memcheck": "_beyond", "racecheck": "_race"}
"""Kernels in which each tool must find something."""
THREADED = "threads"
"""Tests that racecheck cannot follow."""
NOTHING_RAN = 5
LAST_LINES = 15


@dataclasses.dataclass(frozen=True)
class Job:
    """A run of pytest.

    Attributes:
        title: What it is called.
        command: How it is started.
        settings: Variables of its environment.
        finds: Where it must find a mistake, or nothing.
    """

    title: str
    command: list[str]
    settings: dict[str, str]
    finds: str = ""

    def run(self, folder: pathlib.Path) -> tuple[bool, str]:
        """Whether it went well, and what was counted, or the last lines."""
        name = re.sub(r"[^a-z0-9]+", "-", self.title)
        log, own = folder / f"{name}.log", folder / name
        own.mkdir(exist_ok=True)  # processes would clear each other's temporary files away
        with log.open("w") as out:
            paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
            shared = {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
            shared["PYTEST_DEBUG_TEMPROOT"] = str(own)
            environment = {**os.environ, **shared, **self.settings}
            done = subprocess.run(
                self.command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=ROOT
            )
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if self.finds:
            found = done.returncode != 0 and any(f"{self.finds}+0x" in line for line in lines)
            return found, "is found" if found else "\n".join(lines[-LAST_LINES:])
        if done.returncode not in (0, NOTHING_RAN):
            return False, "\n".join(lines[-LAST_LINES:])
        *_, counts = re.findall(r"^.* in [0-9.]+s.*$", "\n".join(lines), re.MULTILINE) or [""]
        return True, "; ".join(dict.fromkeys([counts, lines[-1]]))


def pytest_command(*more: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *more]


def shards(processes: int, files: list[str], which: str) -> list[Job]:
    """All tests, each in one of the processes."""
    chosen = ["-k", which] if which else []
    found = []
    for i in range(processes):
        command = pytest_command(f"--shard={i}/{processes}", *chosen, *files)
        found.append(Job(f"share {i} of {processes}", command, {}))
    return found


def checking(tool: str, kind: str) -> list[str]:
    """What runs a program under one of the sanitizers."""
    return [tool, "--tool", kind, "--error-exitcode", "1", "--kernel-name", CHECKED]


def sanitized(tool: str, files: list[str], which: str) -> list[Job]:
    """The tests of the Triton kernels under memcheck and racecheck."""
    also = f" and ({which})" if which else ""
    alone = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    found = [
        Job(
            f"{kind} {name}",
            [*checking(tool, kind), sys.executable, str(MISTAKES), name],
            alone,
            name,
        )
        for kind, name in PLANTED.items()
    ]
    named = [pathlib.Path(file) for file in files]
    for file in named or sorted((ROOT / "tests" / "kernels").glob("test_fast*.py")):
        for kind, of, chosen, settings in (
            ("memcheck", "", f"{ACCESSED} and not {RECORDED}", alone),
            ("memcheck", " recorded", RECORDED, {}),
            *(("racecheck", of, f"{types} and not {THREADED}", {}) for of, types in SUMMED),
        ):
            run = pytest_command(str(file), "-k", chosen + also)
            found.append(Job(f"{kind} {file.stem}{of}", [*checking(tool, kind), *run], settings))
    return found


def run_all(jobs: list[Job], processes: int, folder: pathlib.Path) -> bool:
    """Run jobs side by side and print how each ended; whether all went well."""
    start = time.monotonic()
    results = []
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        running = {pool.submit(job.run, folder): job for job in jobs}
        for done in concurrent.futures.as_completed(running):
            good, text = done.result()
            print(f"{'ok  ' if good else 'FAIL'} {running[done].title}: {text}", flush=True)
            results.append((good, text))
    passed = sum(int(n) for _, text in results for n in re.findall(r"(\d+) passed", text))
    wrong = sum(not good for good, _ in results) or (0 if passed else len(jobs))
    print(f"{passed} passed, {wrong} of {len(jobs)} runs failed, {time.monotonic() - start:.0f} s")
    return not wrong


def main() -> int:
    """Run the tests; 0 if all passed."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--processes", type=int, default=min(14, os.cpu_count() or 1))
    parser.add_argument("--sanitize", choices=["after", "alone"], help="under compute-sanitizer")
    parser.add_argument("-k", default="", dest="which", help="as pytest's")
    parser.add_argument("--logs", type=pathlib.Path, help="where each process writes")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    tool = sanitizer() if options.sanitize else None
    if not torch.cuda.is_available():
        sys.exit("there is no GPU to test on")
    folder = options.logs or pathlib.Path(tempfile.mkdtemp(prefix="gpu-tests-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"logs in {folder}", flush=True)
    good = True
    if options.sanitize != "alone":
        jobs = shards(options.processes, options.files, options.which)
        good = run_all(jobs, options.processes, folder)
    if tool is not None:
        jobs = sanitized(tool, options.files, options.which)
        good = run_all(jobs, options.processes, folder) and good
    return 0 if good else 1


def sanitizer() -> str:
    """On the path, or where the CUDA toolkit puts it."""
    home = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    homes = [home, *pathlib.Path("/usr/local").glob("cuda-*"), pathlib.Path("/opt/cuda")]
    names = [one / part for one in homes for part in ("bin", "compute-sanitizer")]
    search = os.pathsep.join([os.environ.get("PATH", ""), *map(str, names)])
    found = shutil.which("compute-sanitizer", path=search)
    return found or sys.exit("there is no compute-sanitizer: it comes with the CUDA toolkit")


if __name__ == "__main__":
    sys.exit(main())
