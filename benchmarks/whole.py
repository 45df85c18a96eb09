"""The nine architectures of the tests, for measurements: at home in ``tests/models``."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "models"))

from architectures import NAMES, Example, example, optimized

__all__ = ["NAMES", "Example", "example", "optimized"]
