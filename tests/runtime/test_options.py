import numpy as np
import pytest
import torch

from onnxtrain.errors import OnnxTrainError
from onnxtrain.runtime.options import (
    RunOptions,
    SessionOptions,
    choose_provider,
    get_available_providers,
    get_device,
)
from onnxtrain.types import CPU, CUDA
from runtime.small import session


def test_the_cpu_is_the_default() -> None:
    assert choose_provider(None, None) == (CPU, torch.device("cpu"))


def test_the_first_provider_that_is_there_is_taken() -> None:
    provider, device = choose_provider(["CUDAExecutionProvider", "CPUExecutionProvider"], None)
    assert (provider is CUDA) == torch.cuda.is_available()
    assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown provider 'TPU'\n  have  CPUExecutionProvider"):
        choose_provider(["TPU"], None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch sees a CUDA device")
def test_without_a_device_and_without_the_cpu_there_is_nothing_to_run_on() -> None:
    with pytest.raises(ValueError, match="no provider is available: device 'cuda'"):
        choose_provider(["CUDAExecutionProvider"], None)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("providers", "options"),
    [
        (["CUDAExecutionProvider"], [{"device_id": 0}]),
        ([("CUDAExecutionProvider", {"device_id": "0"})], None),
    ],
)
def test_the_device_is_chosen_by_its_number(providers: list, options: list) -> None:
    assert choose_provider(providers, options) == (CUDA, torch.device("cuda", 0))


def test_available_providers_and_the_device_agree() -> None:
    assert get_available_providers()[-1] == "CPUExecutionProvider"
    assert get_device() == ("GPU" if len(get_available_providers()) == 2 else "CPU")


def test_free_form_entries_are_kept() -> None:
    options = SessionOptions()
    options.add_session_config_entry("a.b", "1")
    assert options.get_session_config_entry("a.b") == "1"
    with pytest.raises(OnnxTrainError, match="session config entry 'c' was never set"):
        options.get_session_config_entry("c")


def test_options_of_a_run_are_taken() -> None:
    options = RunOptions()
    options.log_severity_level, options.logid = 3, "here"
    options.add_run_config_entry("a.b", "1")
    assert options.get_run_config_entry("a.b") == "1"
    with pytest.raises(OnnxTrainError, match="run config entry 'c' was never set"):
        options.get_run_config_entry("c")
    runs = session("(float[1] x) => (float[1] y) { y = Neg(x) }")
    assert runs.run(None, {"x": np.ones(1, np.float32)}, options)[0].tolist() == [-1]


def test_threads_are_set_when_asked_for() -> None:
    before = torch.get_num_threads()
    text = "(float[1] x) => (float[1] y) { y = Neg(x) }"
    try:
        session(text, intra_op_num_threads=1)
        assert torch.get_num_threads() == 1
        session(text)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
