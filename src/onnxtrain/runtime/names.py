"""Python identifiers for tensor names: readable, unique, never a keyword."""

from __future__ import annotations

import keyword
import re

_NOT_IN_NAMES = re.compile(r"\W+", flags=re.ASCII)


class Names:
    """Hands out one identifier per tensor name."""

    def __init__(self) -> None:
        self._taken: set[str] = {"_", "step", "None", "True", "False"}
        self._known: dict[object, str] = {}

    def of(self, key: object, name: str, prefix: str = "") -> str:
        """The identifier that belongs to ``key``; made from ``name`` the first time."""
        if key not in self._known:
            self._known[key] = self.fresh(prefix + name)
        return self._known[key]

    def fresh(self, name: str) -> str:
        """A new identifier that looks like ``name``."""
        base = _NOT_IN_NAMES.sub("_", name).strip("_") or "v"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = "v_" + base
        found, count = base, 1
        while found in self._taken:
            count += 1
            found = f"{base}_{count}"
        self._taken.add(found)
        return found
