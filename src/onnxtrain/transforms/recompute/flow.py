"""The smallest cut of a network, by Dinic's algorithm."""

from __future__ import annotations

from collections import deque


class Network:
    """Vertices, by number, and edges with capacities; an edge of None has no limit."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = []
        self._heads: list[int] = []
        self._left: list[float] = []

    def vertex(self) -> int:
        """A new vertex."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int | None) -> None:
        """An edge, of which the next number is that of its way back."""
        limit = float("inf") if capacity is None else capacity
        for a, b, room in ((tail, head, limit), (head, tail, 0)):
            self._edges[a].append(len(self._heads))
            self._heads.append(b)
            self._left.append(room)

    def behind_cut(self, source: int, sink: int) -> set[int]:
        """The vertices on the sink's side of the smallest cut that is nearest to the sink.

        There must be a cut: no way from the source to the sink without limits.
        """
        while levels := self._levels(source, sink):
            tried = [0] * len(self._edges)
            while self._push(source, sink, levels, tried):
                pass
        return self._reaching(sink)

    def _levels(self, source: int, sink: int) -> list[int]:
        """How far vertices are from the source; nothing if the sink cannot be reached."""
        found = [-1] * len(self._edges)
        found[source] = 0
        waiting = deque([source])
        while waiting:
            vertex = waiting.popleft()
            for edge in self._edges[vertex]:
                head = self._heads[edge]
                if self._left[edge] and found[head] < 0:
                    found[head] = found[vertex] + 1
                    waiting.append(head)
        return found if found[sink] >= 0 else []

    def _push(self, source: int, sink: int, levels: list[int], tried: list[int]) -> float:
        """Let as much flow as one more way has room for; 0 if there is none."""
        way = list[int]()
        vertex = source
        while vertex != sink:
            edges = self._edges[vertex]
            while tried[vertex] < len(edges):
                edge = edges[tried[vertex]]
                head = self._heads[edge]
                if self._left[edge] and levels[head] == levels[vertex] + 1:
                    break
                tried[vertex] += 1
            else:
                if not way:
                    return 0
                vertex = self._heads[way.pop() ^ 1]
                tried[vertex] += 1
                continue
            way.append(edge)
            vertex = head
        room = min(self._left[edge] for edge in way)
        for edge in way:
            self._left[edge] -= room
            self._left[edge ^ 1] += room
        return room

    def _reaching(self, sink: int) -> set[int]:
        """Vertices from which more could flow to the sink."""
        found, waiting = {sink}, [sink]
        while waiting:
            for back in self._edges[waiting.pop()]:
                tail = self._heads[back]
                if self._left[back ^ 1] and tail not in found:
                    found.add(tail)
                    waiting.append(tail)
        return found
