"""Words by which the clusters of a row tell each other their results."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
import triton
import triton.language as tl

from kernels.fast import module
from kernels.test_fast_softmax import words as words_of
from onnxtrain.kernels.fast.common.exchange import _of_clusters

ROWS, CLUSTERS, PROGRAMS = 2, 3, 2


@triton.jit
def _tell(found, words, pairs, row, part, G: tl.constexpr, P: tl.constexpr, S: tl.constexpr):
    pair = pairs + 2 * (row * G + part // S)
    first, second = tl.load(pair), tl.load(pair + 1)
    firsts, seconds = _of_clusters(words, row, part, first, second, G, P, S)
    tl.store(found + tl.arange(0, P), firsts)
    tl.store(found + P + tl.arange(0, P), seconds)


def test_clusters_of_a_row() -> None:
    """Each program alone, among words that the other clusters have left for it."""
    pairs = torch.randn(ROWS, CLUSTERS, 2)
    pairs[1, 0] = torch.tensor([float("-inf"), 0.0])
    total = ROWS * CLUSTERS * PROGRAMS * CLUSTERS
    everywhere = torch.zeros(total, dtype=torch.int64)
    for row in range(ROWS):
        for part in range(CLUSTERS * PROGRAMS):
            cluster, rank = part // PROGRAMS, part % PROGRAMS
            board, found = torch.zeros(1 + total, dtype=torch.int64), torch.empty(2, 4)
            places = board[1:].view(ROWS, CLUSTERS, PROGRAMS, CLUSTERS)
            places[row, cluster, rank] = words_of(pairs[row])
            places[row, cluster, rank, cluster] = 0
            _tell[(1,)](found, board, pairs, row, part, CLUSTERS, 4, PROGRAMS)
            nothing = torch.tensor([[float("-inf"), 0.0]])
            assert torch.equal(found.T, torch.cat([pairs[row], nothing]))
            assert not places[row, cluster, rank].any() and board[0] == 0
            left = board[1:].nonzero().squeeze(-1)
            assert len(left) == CLUSTERS - 1, "one for each other cluster"
            assert set(board[1 + left].tolist()) == {words_of(pairs[row, cluster]).item()}
            everywhere[left] += 1
    own = torch.eye(CLUSTERS, dtype=torch.int64)[:, None].expand(ROWS, -1, PROGRAMS, -1)
    assert torch.equal(everywhere.view(own.shape), 1 - own), "each word is left by one program"


def test_memory_of_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches on a stream share it; a recorded one has its own."""
    exchange, scratch = module("common.exchange"), module("common.scratch")
    parts = module("common.axis").Parts
    found, x = {"stream": 7, "recording": 0}, torch.empty(3)
    streams = SimpleNamespace(get_current_stream=lambda index: found["stream"])
    monkeypatch.setattr(scratch, "driver", SimpleNamespace(active=streams))
    monkeypatch.setattr(scratch, "interpreted", lambda: False)
    monkeypatch.setattr(exchange.WORDS, "_kept", {})
    recording = "is_current_stream_capturing"
    monkeypatch.setattr(torch.cuda, recording, lambda: bool(found["recording"]))

    def words(rows: int) -> Tensor:
        result: Tensor = exchange.words_for(rows, parts(12, 8192, 4), x)
        return result

    assert exchange.words_for(5, parts(16, 8192, 16), x) is x
    assert exchange.words_for(5, parts(12, 8192, 1), x).shape == (61,)
    first = words(5)
    assert first.shape == (181,) and not first.any() and words(5) is words(3) is first
    found["recording"] = 1
    assert words(5) is not first
    found.update(stream=8, recording=0)
    assert words(5) is not first and words(5) is words(5)
    found["stream"] = 7
    assert words(6) is not first and words(5) is words(6)
