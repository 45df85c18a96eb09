"""Every example runs in an empty folder and learns what it says it does."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import onnxtrain

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
SOURCE = pathlib.Path(onnxtrain.__file__).parents[1]
ACCURACY = {
    "digits.py": r"held-out accuracy (0\.\d+)",
    "finetune_head.py": r"odd or even: (0\.\d+)",
    "ort_training_loop.py": r"held-out accuracy ([01]\.\d+)",
    "torch_loss.py": r"held-out accuracy (0\.\d+)",
    "training_artifacts.py": r"held-out accuracy (0\.\d+)",
}
"""What an example prints last, where it tells how much it has learnt."""
FOR_DOCS = {"model_and_csv.py"}
"""Examples that pages of the documentation run."""


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == ACCURACY.keys() | FOR_DOCS


@pytest.mark.parametrize("name", ACCURACY)
def test_example(name, tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(ACCURACY[name], done.stdout)
    assert float(found[-1]) > 0.9
