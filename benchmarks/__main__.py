"""Run a benchmark by name: python -m benchmarks NAME [OPTIONS]."""

from __future__ import annotations

import pathlib
import runpy
import sys

HERE = pathlib.Path(__file__).parent
SHARED = {
    "__main__",
    "again",
    "contenders",
    "growth",
    "newest",
    "op_anchors",
    "op_compiled",
    "op_recorded",
    "op_row",
    "op_rows",
    "op_rows_activation",
    "op_rows_codec",
    "op_rows_image",
    "op_rows_step",
    "op_rows_tensor",
    "op_rows_update",
    "op_timing",
}
SHARED |= {
    "page",
    "pairs",
    "reference_steps",
    "report",
    "turns",
    "whole",
    "zoo_compare",
    "zoo_file",
}
"""Modules that are no benchmarks themselves."""


FILES = {"networks": "models"}
"""Files whose benchmark has another name; a module called models would hide that of the tests."""


def main() -> None:
    files = {path.stem for path in HERE.glob("*.py")} - SHARED
    names = {FILES.get(stem, stem): stem for stem in sorted(files)}
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        sys.exit(f"usage: python -m benchmarks NAME [OPTIONS]\n  have  {', '.join(sorted(names))}")
    sys.path.insert(0, str(HERE))
    name = sys.argv.pop(1)
    sys.argv[0] = str(HERE / f"{names[name]}.py")
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
