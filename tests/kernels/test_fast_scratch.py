"""Memory that launches on one stream share."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from onnxtrain.kernels.fast.common import scratch

CPU = torch.device("cpu")


class Stream:
    """The stream on which a thread would launch, and whether that is recorded."""

    number = 1
    recorded = False


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    found = Stream()
    active = SimpleNamespace(get_current_stream=lambda index: found.number)
    monkeypatch.setattr(scratch, "interpreted", lambda: False)
    monkeypatch.setattr(scratch, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: found.recorded)
    return found


def memory() -> scratch.Memory[list[int]]:
    return scratch.Memory(lambda sizes, device: [*sizes], 100)


def test_launches_on_a_stream_share_what_grows_with_them(stream: Stream) -> None:
    kept = memory()
    first = kept.of((10, 20), CPU)
    assert first == [10, 20] and kept.of((5, 20), CPU) is first
    larger = kept.of((30, 5), CPU)
    assert larger == [30, 20] and kept.of((10, 20), CPU) is larger
    stream.number = 2
    other = kept.of((10, 20), CPU)
    assert other == [10, 20] and other is not larger


def test_too_much_is_not_kept(stream: Stream) -> None:
    kept = memory()
    first = kept.of((60, 20), CPU)
    assert kept.of((20, 60), CPU) == [20, 60], "both together would be too much"
    assert kept.of((101, 0), CPU) == [101, 0]
    assert kept.of((60, 20), CPU) is first


def test_recorded_launches_and_other_threads_have_their_own(stream: Stream) -> None:
    kept = memory()
    first = kept.of((1,), CPU)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(kept.of, (1,), CPU).result() is not first
    stream.recorded = True
    assert kept.of((1,), CPU) is not first and kept.of((1,), CPU) is not kept.of((1,), CPU)
    stream.recorded = False
    assert kept.of((1,), CPU) is first
