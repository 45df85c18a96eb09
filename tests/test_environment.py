"""What users of onnxruntime call: it is here, or an error says what to do instead."""

import logging
from types import ModuleType

import numpy as np
import pytest
import torch

import onnxtrain
from onnxtrain import InferenceSession, IOBinding, OrtValue, RunOptions, SessionOptions
from onnxtrain.errors import DeviceError, FeedError, OptionError
from onnxtrain.runtime.absent import ABSENT
from runtime.small import model

OWNERS = {
    c.__name__: c for c in (InferenceSession, IOBinding, OrtValue, RunOptions, SessionOptions)
}
NEG = "(float[N,2] x) => (float[N,2] y) { y = Neg(x) }"
INNER = {"import_capi_exception", "cuda_version", "package_name", "version"}
"""Names that onnxruntime's module shows and does not offer."""


@pytest.mark.parametrize("owner", [*OWNERS, "onnxtrain"])
def test_every_name_of_onnxruntime_is_here_or_explained(owner: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="compares with onnxruntime")
    theirs = onnxruntime if owner == "onnxtrain" else getattr(onnxruntime, owner)
    names = {name for name in dir(theirs) if not name.startswith("_")} - INNER
    # modules are among them as soon as anybody has imported one
    names = {name for name in names if not isinstance(getattr(theirs, name), ModuleType)}
    ours = onnxtrain if owner == "onnxtrain" else OWNERS[owner]
    have = set(dir(ours)) | set(getattr(ours, "__dataclass_fields__", ()))
    assert names - have <= ABSENT[owner].keys()
    assert not ABSENT[owner].keys() & have


def made(owner: str) -> object:
    runs = InferenceSession(model(NEG))
    things = [runs, runs.io_binding(), OrtValue(torch.ones(1)), RunOptions(), SessionOptions()]
    return {type(thing).__name__: thing for thing in things}[owner]


@pytest.mark.parametrize("owner", ABSENT)
def test_what_is_not_here_is_said_with_a_cure(owner: str) -> None:
    thing = onnxtrain if owner == "onnxtrain" else made(owner)
    for name, cure in ABSENT[owner].items():
        with pytest.raises(AttributeError) as caught:
            getattr(thing, name)
        assert repr(name) in str(caught.value) and cure in str(caught.value)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = thing.nothing  # type: ignore[attr-defined]


def test_options_have_no_other_names() -> None:
    for options in (SessionOptions(), RunOptions()):
        with pytest.raises(AttributeError, match="threads"):
            options.threads = 3  # type: ignore[union-attr]


def test_sessions_take_no_unknown_arguments() -> None:
    InferenceSession(model(NEG), disabled_optimizers=[], enable_fallback=False)
    with pytest.raises(TypeError, match="a session takes no argument 'provider'"):
        InferenceSession(model(NEG), provider=["CPUExecutionProvider"])


def test_an_optimised_model_is_not_written() -> None:
    options = SessionOptions(optimized_model_filepath="m.onnx")
    with pytest.raises(OptionError, match=r"cannot write an optimised model to 'm.onnx'"):
        InferenceSession(model(NEG), options)


def test_providers_may_be_in_the_options() -> None:
    options = SessionOptions()
    assert not options.has_providers()
    options.add_provider("CPUExecutionProvider", {})
    assert options.has_providers()
    assert InferenceSession(model(NEG), options).get_providers() == ["CPUExecutionProvider"]
    with pytest.warns(UserWarning, match="those of its options are not used") as warned:
        InferenceSession(model(NEG), options, ["CPUExecutionProvider"])
    assert warned[0].filename == __file__
    options.add_provider("Nothing")
    with pytest.raises(DeviceError, match="unknown provider 'Nothing'"):
        other = SessionOptions()
        other.add_provider("Nothing")
        InferenceSession(model(NEG), other)


def test_a_session_stays_where_it_is() -> None:
    runs = InferenceSession(model(NEG))
    runs.set_providers(["CPUExecutionProvider"])
    runs._device = torch.device("cuda", 7)
    with pytest.raises(DeviceError, match="cannot move\n  make another one"):
        runs.set_providers(["CPUExecutionProvider"])


def test_calls_without_effect() -> None:
    runs = InferenceSession(model(NEG))
    runs.disable_fallback()
    runs.enable_fallback()
    runs.release_captured_graph()
    runs.set_tuning_results(runs.get_tuning_results())
    assert runs.get_profiling_start_time_ns() == 0
    timed = InferenceSession(model(NEG), SessionOptions(enable_profiling=True))
    assert timed.get_profiling_start_time_ns() > 0
    assert runs.create_ortvalue_from_shape_and_type([2], np.int8, "cpu").shape() == [2]
    onnxtrain.enable_telemetry_events()
    onnxtrain.disable_telemetry_events()
    onnxtrain.preload_dlls(cuda=False)
    onnxtrain.set_default_logger_verbosity(1)


def test_facts_about_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert onnxtrain.get_version_string() == onnxtrain.__version__
    assert torch.__version__ in onnxtrain.get_build_info()
    assert set(onnxtrain.get_available_providers()) <= set(onnxtrain.get_all_providers())
    assert onnxtrain.has_collective_ops() == torch.distributed.is_available()
    onnxtrain.print_debug_info()
    assert onnxtrain.__version__ in capsys.readouterr().out


def test_the_severity_is_that_of_the_logger() -> None:
    logger = logging.getLogger("onnxtrain")
    before = logger.level
    try:
        onnxtrain.set_default_logger_severity(3)
        assert logger.level == logging.ERROR
    finally:
        logger.setLevel(before)
    for severity in (-1, 5, "x"):
        with pytest.raises(OptionError, match="the severity of logging cannot be"):
            onnxtrain.set_default_logger_severity(severity)  # type: ignore[arg-type]


def test_threads_are_set_for_the_process() -> None:
    before = torch.get_num_threads()
    try:
        onnxtrain.set_global_thread_pool_sizes(1)
        onnxtrain.set_global_thread_pool_sizes()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    with pytest.raises(OptionError, match="the number of threads cannot be -1"):
        onnxtrain.set_global_thread_pool_sizes(-1)


def test_contents_are_copied() -> None:
    source, target = OrtValue(torch.ones(2)), OrtValue(torch.zeros(2))
    onnxtrain.copy_tensors([source], [target])
    assert target.numpy().tolist() == [1, 1]
    with pytest.raises(FeedError, match="cannot copy 1 values into 0"):
        onnxtrain.copy_tensors([source], [])
    with pytest.raises(FeedError, match=r"into a value of torch.float32 \[3\]"):
        onnxtrain.copy_tensors([source], [OrtValue(torch.zeros(3))])
    with pytest.raises(OptionError, match="torch's current stream"):
        onnxtrain.copy_tensors([source], [target], stream=1)
