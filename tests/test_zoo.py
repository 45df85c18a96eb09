"""The stages that files of public packages go through."""

import json
import pathlib
import subprocess
import sys

import onnx
import pytest

from graph.text import proto

ROOT = pathlib.Path(__file__).parents[1]
STAGES = ("load", "forward", "gradient", "train", "export")


def stages(path: pathlib.Path) -> dict[str, dict[str, object]]:
    """What a process says about a file."""
    script = ROOT / "benchmarks" / "zoo_file.py"
    command = [sys.executable, "-W", "ignore", str(script), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, object]] = {}
    for line in done.stdout.splitlines():
        found.update(json.loads(line))
    return found


@pytest.mark.parametrize(
    "text",
    [
        """(float[N,2] x) => (float[N,2] y, int64[N] best, float[N,2] y)
          <float[2,2] w = {1, 2, 3, 4}> {
            h = MatMul(x, w)  y = Tanh(h)  best = ArgMax<axis = 1, keepdims = 0>(y)
        }""",
        """(float[N,2] x) => (float[N,2] y)
          <float[2,2] w = {0.5, -0.25, 0.125, 0.5}, float s = {0.1}, int8 z = {0}> {
            q = QuantizeLinear(x, s, z)  a = DequantizeLinear(q, s, z)  y = MatMul(a, w)
        }""",
    ],
    ids=["an output twice", "rounding"],
)
def test_a_file_passes_all_stages(text: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(proto(text), path)
    found = stages(path)
    assert {name: found[name]["ok"] for name in STAGES} == dict.fromkeys(STAGES, True), found
