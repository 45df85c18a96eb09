"""Figures of a run, kept for the end and written down as they come."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Protocol

from onnxtrain.errors import SaveError
from onnxtrain.files.atomic import atomic_write

Entry = dict[str, Any]
"""Figures by name, with the update (``step``) after which they were taken."""
MOST = 2000
"""Records of single updates that are kept; beyond, every second one is left out."""


class Recorder(Protocol):
    """Writes figures down."""

    def begin(self, position: int) -> None:
        """Forget what was written after an update, since the run goes on from there."""

    def add(self, entry: Entry) -> None:
        """Write figures down."""

    def close(self) -> None:
        """Nothing more will come."""


class History:
    """Figures in memory, which checkpoints carry along."""

    def __init__(self) -> None:
        self.steps: list[Entry] = []
        self.judged: list[Entry] = []

    def begin(self, position: int) -> None:
        """Nothing: what a checkpoint holds is never after its own update."""

    def add(self, entry: Entry) -> None:
        """Keep figures; those of single updates are thinned out when they become many."""
        if "epoch" in entry:
            self.judged.append(entry)
            return
        self.steps.append(entry)
        if len(self.steps) > MOST:
            self.steps = self.steps[::2]

    def close(self) -> None:
        """Nothing to do."""

    def state(self) -> dict[str, list[Entry]]:
        """All figures, as JSON can hold them."""
        return {"steps": list(self.steps), "judged": list(self.judged)}

    def restore(self, state: dict[str, list[Entry]]) -> None:
        """Go on from saved figures."""
        self.steps, self.judged = list(state["steps"]), list(state["judged"])


class JsonLines:
    """A file with one JSON object a line.

    Raises:
        SaveError: if it cannot be written.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file: Any = None

    def begin(self, position: int) -> None:
        """Keep the lines up to an update; those after it will be written again."""
        lines = self._before(position) if position else []
        atomic_write(self._path, "".join(line + "\n" for line in lines).encode())
        try:
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            raise SaveError(f"cannot write '{self._path}': {error.strerror}") from error

    def _before(self, position: int) -> list[str]:
        kept = []
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        for line in text.splitlines():
            try:
                step = json.loads(line)["step"]
            except (ValueError, KeyError, TypeError):
                break
            if step <= position:
                kept.append(line)
        return kept

    def add(self, entry: Entry) -> None:
        """Append a line, at once visible to others."""
        try:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
        except OSError as error:
            raise SaveError(f"cannot write '{self._path}': {error.strerror}") from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
