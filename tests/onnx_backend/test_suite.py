"""ONNX's backend suite on each device; a case that is excluded must still fail."""

import importlib.util

import pytest
from onnx.backend.test.case.test_case import TestCase

import onnxtrain.backend
from onnx_backend.exclusions import EXCLUDED, EXCLUDED_ON_CUDA, excluded
from onnx_backend.suite import KINDS, cases, check, data_of, model_of

ALL = [case for kind in KINDS for case in cases(kind)]
needs_pillow = pytest.mark.skipif(
    importlib.util.find_spec("PIL") is None, reason="decoding pictures needs Pillow"
)


def params(wanted: bool, device: str) -> list[object]:
    """Cases that are excluded on a device, or those that are not."""
    return [
        pytest.param(
            case,
            device,
            id=f"{case.name.removeprefix('test_')}-{device}",
            marks=[
                *([pytest.mark.gpu] if device == "cuda" else []),
                *([needs_pillow] if "image_decoder" in case.name else []),
            ],
        )
        for case in ALL
        if (case.name in excluded(device)) is wanted
    ]


def run(case: TestCase, device: str) -> None:
    prepared = onnxtrain.backend.prepare(model_of(case), device, seed=0)
    for data in data_of(case):
        check(data.outputs, prepared.run(data.inputs), case)


@pytest.mark.parametrize(("case", "device"), [*params(False, "cpu"), *params(False, "cuda")])
def test_case(case: TestCase, device: str) -> None:
    run(case, device)


@pytest.mark.parametrize(("case", "device"), [*params(True, "cpu"), *params(True, "cuda")])
def test_excluded_case_still_fails(case: TestCase, device: str) -> None:
    with pytest.raises(AssertionError):
        run(case, device)


def test_every_exclusion_is_a_case() -> None:
    assert {*EXCLUDED, *EXCLUDED_ON_CUDA} <= {case.name for case in ALL}


def test_the_suite_is_as_large_as_we_think() -> None:
    counts = {kind: len(cases(kind)) for kind in KINDS}
    least = {"node": 1800, "simple": 23, "pytorch-operator": 35, "pytorch-converted": 82}
    assert all(counts[kind] >= least[kind] for kind in KINDS), counts
