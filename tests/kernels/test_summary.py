"""Summaries: the reference's bytes, what TensorBoard reads, and what is refused."""

import math
import sys
from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch

from onnxtrain.kernels import summary
from onnxtrain.runtime.session import InferenceSession

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> main '
INF, NAN = float("inf"), float("nan")


def scalars(values: Any, *tags: str) -> bytes:
    return bytes(summary.summary_scalar(torch.tensor(values), tags=tags).item())


def text(values: Any, tag: str = "t") -> bytes:
    return bytes(summary.summary_text(np.array(values, dtype=object), tag=tag).item())


def histogram(values: Any, dtype: torch.dtype = torch.float32) -> Any:
    record = summary.summary_histogram(torch.tensor(values, dtype=dtype), tag="h").item()
    [value] = summary._summary_class().FromString(record).value
    assert value.tag == "h"
    return value.histo


def buckets(found: Any) -> list[tuple[float, float]]:
    return list(zip(found.bucket_limit, found.bucket, strict=True))


@pytest.mark.parametrize(
    ("ours", "reference"),
    [
        (
            scalars([0.0, 1.5, -2.25], "a", "b", "c"),
            "0a080a016115000000000a080a0162150000c03f0a080a016315000010c0",
        ),
        (
            text([["a", "b"], ["", "dé"]]),
            "0a280a017442190807120812020802120208024201614201624200420364c3a94a080a060a0474657874",
        ),
        (text("zz"), "0a150a01744206080742027a7a4a080a060a0474657874"),
        (text(np.zeros((0, 3))), "0a190a0174420a080712061200120208034a080a060a0474657874"),
    ],
)
def test_bytes_are_the_reference_s(ours: bytes, reference: str) -> None:
    assert ours == bytes.fromhex(reference)


@pytest.mark.parametrize(
    ("values", "reference"),
    [
        ([], "09ffffffffffffef7f11ffffffffffffefff320800000000000000003a080000000000000000"),
        (
            [NAN, 1, INF, -3, -INF],
            "0900000000000008c011000000000000f03f1900000000000000402100000000000000c0290000000000"
            "00244032280d9cc5a0295509c068bc10359a0707c008996919155aed3f2b14facdbe24f03f0000000000"
            "0000003a280000000000000000000000000000f03f0000000000000000000000000000f03f0000000000"
            "000000",
        ),
    ],
)
def test_histograms_are_the_reference_s(values: list[float], reference: str) -> None:
    assert histogram(values).SerializeToString() == bytes.fromhex(reference)


def test_a_bucket_for_each_kind_of_value() -> None:
    found = histogram([-9, -2, 0, 2, 3, 9])
    rounded = [(round(limit, 4), count) for limit, count in buckets(found)]
    assert rounded == [
        (-9.0346, 0),
        (-8.2133, 1),
        (-2.1628, 0),
        (-1.9662, 1),
        (-0.0, 0),
        (0.0, 1),
        (1.9662, 0),
        (2.1628, 1),
        (2.8787, 0),
        (3.1666, 1),
        (8.2133, 0),
        (9.0346, 1),
        (0.0, 0),
    ]
    assert (found.min, found.max, found.num, found.sum, found.sum_squares) == (-9, 9, 6, 3, 179)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_no_value_is_lost(dtype: torch.dtype) -> None:
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0)).to(dtype).double()
    found = histogram(values.tolist(), dtype)
    counts = buckets(found)[:-1]
    assert sum(count for _, count in counts) == found.num == 2000
    below = -math.inf
    for limit, count in counts:
        assert int(((values >= below) & (values < limit)).sum()) == count
        below = limit
    assert found.sum_squares == pytest.approx(float((values**2).sum()), rel=1e-12)


def test_the_largest_numbers_are_in_the_last_bucket() -> None:
    found = histogram([1e25, 1e300, sys.float_info.max, -1e300], torch.float64)
    assert buckets(found)[-2] == (sys.float_info.max, 3.0) and found.num == 4


def test_limits_grow_by_a_tenth() -> None:
    limits = summary.bucket_limits()
    assert len(limits) == 2 * 775 and (np.diff(limits) > 0).all()
    assert limits[775] == 1e-12 and limits[774] == -1e-12


def test_truth_values_and_halves_are_scalars() -> None:
    made = summary.summary_scalar(torch.tensor([[True, False]]), tags=("a", "b")).item()
    assert [v.simple_value for v in summary._summary_class().FromString(made).value] == [1.0, 0.0]
    half = summary.summary_scalar(torch.tensor(0.1, dtype=torch.float16), tags=("a",)).item()
    assert summary._summary_class().FromString(half).value[0].simple_value == 0.0999755859375


def test_each_value_needs_a_tag() -> None:
    with pytest.raises(ValueError, match="3 values have 2 tags: a, b"):
        scalars([1.0, 2.0, 3.0], "a", "b")


def merged(*records: Any) -> bytes:
    arrays = [np.array(record, dtype=object) for record in records]
    return bytes(summary.summary_merge(*arrays).item())


def test_summaries_are_merged_in_order() -> None:
    first, second = scalars([1.0, 2.0], "a", "b"), text("x", tag="c")
    assert merged(first, [second]) == first + second


def test_what_the_messages_do_not_declare_is_kept() -> None:
    image = bytes.fromhex("0a080a016122030a0102")
    assert merged(image) == image


def test_merging_refuses_a_tag_twice_and_bytes_of_no_summary() -> None:
    record = scalars([1.0], "loss")
    with pytest.raises(ValueError, match="duplicate tag 'loss'"):
        merged(record, record)
    assert merged(scalars([1.0], ""), scalars([2.0], "")) == scalars([1.0, 2.0], "", "")
    with pytest.raises(ValueError, match="summary 1 is not a serialized Summary"):
        merged(record, b"\xff\xff")


MODEL = """(float[2] x, string[n] note) => (string summary) {
  scalar = com.microsoft.SummaryScalar<tags = ["a", "b"]>(x)
  histogram = com.microsoft.SummaryHistogram<tag = "h">(x)
  words = com.microsoft.SummaryText<tag = "w">(note)
  summary = com.microsoft.SummaryMerge(scalar, histogram, words)
}"""


def run() -> bytes:
    session = InferenceSession(onnx.parser.parse_model(HEAD + MODEL))
    note = np.array(["good", "bad"], dtype=object)
    [record] = session.run(None, {"x": np.array([1, 2], np.float32), "note": note})
    assert record.shape == () and record.dtype == object
    return bytes(record.item())


def test_a_graph_makes_a_record() -> None:
    values = summary._summary_class().FromString(run()).value
    assert [value.tag for value in values] == ["a", "b", "h", "w"]
    assert [value.simple_value for value in values[:2]] == [1.0, 2.0]
    assert list(values[3].tensor.string_val) == [b"good", b"bad"]


def test_tensorboard_reads_it() -> None:
    protos = pytest.importorskip(
        "tensorboard.compat.proto.summary_pb2", reason="TensorBoard is not installed"
    )
    read = protos.Summary.FromString(run())
    assert [value.tag for value in read.value] == ["a", "b", "h", "w"]
    assert read.value[2].histo.num == 2 and read.value[3].metadata.plugin_data.plugin_name == "text"
    assert read.SerializeToString() == run()
