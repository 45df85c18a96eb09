import queue
import threading
from typing import Any

import numpy as np
import pytest

from onnxtrain import RunOptions
from onnxtrain.errors import FeedError, OnnxTrainError
from runtime.small import session

NEG = "(float[N,2] x) => (float[N,2] y, float[N,2] z) { y = Neg(x)  z = Abs(x) }"
X = np.array([[1, -2]], np.float32)
Answers = queue.Queue[tuple[list[Any], Any, str, threading.Thread]]


def asked(*args: Any, times: int = 1) -> list[tuple[list[Any], Any, str, threading.Thread]]:
    answers: Answers = queue.Queue()

    def callback(results: list[Any], data: Any, error: str) -> None:
        answers.put((results, data, error, threading.current_thread()))

    runs = session(NEG)
    for _ in range(times):
        runs.run_async(*args[:2], callback, *args[2:])
    return [answers.get(timeout=30) for _ in range(times)]


def test_results_arrive_in_another_thread() -> None:
    ((results, data, error, thread),) = asked(None, {"x": X}, "mine")
    assert [r.tolist() for r in results] == [[[-1, 2]], [[1, 2]]]
    assert (data, error) == ("mine", "") and thread is not threading.current_thread()


def test_many_runs_follow_one_another() -> None:
    answers = asked(["z"], {"x": X}, None, times=20)
    assert {thread for *_, thread in answers} == {answers[0][3]}
    assert all(results[0].tolist() == [[1, 2]] for results, *_ in answers)


@pytest.mark.parametrize(
    ("names", "x", "said"),
    [(["q"], X, "the model has no output 'q'"), (None, np.ones((1, 3), np.float32), "shape")],
)
def test_what_went_wrong_is_said_to_the_callback(names: Any, x: Any, said: str) -> None:
    ((results, data, error, _),) = asked(names, {"x": x}, 5)
    assert results == [] and data == 5 and said in error


def test_missing_inputs_are_refused_at_once() -> None:
    with pytest.raises(FeedError, match="no value for input 'x'"):
        session(NEG).run_async(None, {}, print, None)
    with pytest.raises(TypeError, match="the callback is a NoneType"):
        session(NEG).run_async(None, {"x": X}, None, None)  # type: ignore[arg-type]


def test_a_callback_that_fails_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: queue.Queue[BaseException | None] = queue.Queue()
    monkeypatch.setattr(threading, "excepthook", lambda args: heard.put(args.exc_value))

    def callback(*_: Any) -> None:
        raise KeyError("mine")

    session(NEG).run_async(None, {"x": X}, callback, None)
    assert isinstance(heard.get(timeout=30), KeyError)


def test_a_run_that_is_to_end_does_not_begin() -> None:
    options, runs = RunOptions(terminate=True), session(NEG)
    for run in (runs.run, runs.run_with_ort_values):
        with pytest.raises(OnnxTrainError, match="terminate is set"):
            run(None, {"x": X}, options)
    with pytest.raises(OnnxTrainError, match="terminate is set"):
        runs.run_with_iobinding(runs.io_binding(), options)
    ((_, _, error, _),) = asked(None, {"x": X}, None, options)
    assert "terminate is set" in error
