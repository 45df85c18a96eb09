"""What fusion did to a model, and what it left alone and why."""

from __future__ import annotations

import collections
import dataclasses


@dataclasses.dataclass(frozen=True)
class Fused:
    """Nodes that became one.

    Attributes:
        pattern: What they were recognised as.
        node: Name of the new node.
        replaced: Names of the nodes that it stands for.
    """

    pattern: str
    node: str
    replaced: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Missed:
    """Nodes that look like a pattern and are none, with the reason."""

    pattern: str
    node: str
    reason: str


@dataclasses.dataclass
class Report:
    """What was fused, and what nearly was."""

    fused: list[Fused] = dataclasses.field(default_factory=list)
    missed: list[Missed] = dataclasses.field(default_factory=list)

    def count(self, pattern: str) -> int:
        """How often a pattern was found."""
        return sum(one.pattern == pattern for one in self.fused)

    def counts(self) -> dict[str, int]:
        """How often each pattern was found, those that never were left out."""
        return dict(collections.Counter(one.pattern for one in self.fused))

    def reasons(self) -> dict[tuple[str, str], list[str]]:
        """Nodes that were left alone, by pattern and reason."""
        found: dict[tuple[str, str], list[str]] = {}
        for one in self.missed:
            found.setdefault((one.pattern, one.reason), []).append(one.node)
        return found

    def lines(self) -> list[str]:
        """The report as text: one line for each pattern, then one for each reason."""
        done = [
            f"fused {count} x {pattern}, {self._nodes(pattern)} nodes"
            for pattern, count in self.counts().items()
        ]
        left = [
            f"left {len(nodes)} x {pattern}, first '{nodes[0]}': {reason}"
            for (pattern, reason), nodes in self.reasons().items()
        ]
        return done + left

    def _nodes(self, pattern: str) -> int:
        return sum(len(one.replaced) for one in self.fused if one.pattern == pattern)
