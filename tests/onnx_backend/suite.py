"""ONNX's own backend suite: its cases, and how an answer is judged."""

import dataclasses
import functools
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")


@dataclasses.dataclass(frozen=True)
class Data:
    """Inputs of a model, and the outputs that it should have."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]


@functools.cache
def cases(kind: str) -> tuple[TestCase, ...]:
    """All cases of one kind, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load_model_tests(kind=kind)
    return tuple(sorted(found, key=lambda case: str(case.name)))


def model_of(case: TestCase) -> onnx.ModelProto:
    return case.model if case.model is not None else onnx.load(_folder(case) / "model.onnx")


def data_of(case: TestCase) -> Iterator[Data]:
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield Data([_array(item) for item in inputs], [_array(item) for item in outputs])
        return
    graph = model_of(case).graph
    for folder in sorted(_folder(case).glob("test_data_set*")):
        yield Data(
            _read(folder, "input", [value.type for value in graph.input]),
            _read(folder, "output", [value.type for value in graph.output]),
        )


def _folder(case: TestCase) -> pathlib.Path:
    assert case.model_dir is not None
    return pathlib.Path(case.model_dir)


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _read(folder: pathlib.Path, what: str, types: Sequence[onnx.TypeProto]) -> list[Any]:
    """Values in files, which hold a sequence or a tensor as the graph declares it."""
    values: list[Any] = []
    for index in range(len(list(folder.glob(f"{what}_*.pb")))):
        content = (folder / f"{what}_{index}.pb").read_bytes()
        if types[index].HasField("sequence_type"):
            values.append(onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(content)))
        else:
            values.append(onnx.numpy_helper.to_array(onnx.TensorProto.FromString(content)))
    return values


def check(expected: Sequence[Any], found: Sequence[Any], case: TestCase) -> None:
    """Compare with the tolerance of the case, one tensor at a time.

    ONNX's own comparison of sequences stumbles over elements of rank 0.
    """
    assert len(expected) == len(found)
    for wanted, have in zip(expected, found, strict=True):
        if isinstance(wanted, list):
            assert isinstance(have, list)
            check(wanted, have, case)
        elif wanted is None:
            assert have is None
        else:
            Runner.assert_similar_outputs([wanted], [have], case.rtol, case.atol)
