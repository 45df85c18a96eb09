"""TensorBoard summaries: each operator gives one serialized ``tensorboard.Summary``.

TensorBoard itself is not needed: the messages are declared here, for protobuf's own runtime. Where
it is installed, ``Summary.FromString`` reads what comes out, and its event writer takes it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from torch import Tensor

from onnxtrain.kernels.registry import kernel
from onnxtrain.types import BOOL, FLOATS, MS

Strings = npt.NDArray[Any]
"""A tensor of strings: a numpy array of str or bytes."""

PACKAGE = "tensorboard"
DT_STRING = 7
"""TensorFlow's number for the element type string."""
_KINDS = {"double": 1, "float": 2, "int64": 3, "int32": 5, "string": 9, "bytes": 12}
_MESSAGES = {
    "PluginData": [("plugin_name", 1, "string")],
    "SummaryMetadata": [("plugin_data", 1, "PluginData")],
    "Dim": [("size", 1, "int64")],
    "TensorShapeProto": [("dim", 2, "Dim*")],
    "TensorProto": [
        ("dtype", 1, "int32"),
        ("tensor_shape", 2, "TensorShapeProto"),
        ("string_val", 8, "bytes*"),
    ],
    "HistogramProto": [
        ("min", 1, "double"),
        ("max", 2, "double"),
        ("num", 3, "double"),
        ("sum", 4, "double"),
        ("sum_squares", 5, "double"),
        ("bucket_limit", 6, "double*"),
        ("bucket", 7, "double*"),
    ],
    "Value": [
        ("tag", 1, "string"),
        ("simple_value", 2, "float?"),
        ("histo", 5, "HistogramProto?"),
        ("tensor", 8, "TensorProto?"),
        ("metadata", 9, "SummaryMetadata"),
    ],
    "Summary": [("value", 1, "Value*")],
}
"""Fields of each message: name, number and type, with * for a list and ? for one of the values."""


@functools.cache
def _summary_class() -> type[Any]:
    """The class of ``tensorboard.Summary`` messages, in a pool of its own."""
    file = descriptor_pb2.FileDescriptorProto(
        name="onnxtrain/summary.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        declared = file.message_type.add(name=name)
        if any(kind.endswith("?") for *_, kind in fields):
            declared.oneof_decl.add(name="value")
        for field, number, kind in fields:
            _declare(declared.field.add(name=field, number=number), kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"{PACKAGE}.Summary")
    made: type[Any] = message_factory.GetMessageClass(found)
    return made


def _declare(field: Any, kind: str) -> None:
    bare = kind.rstrip("*?")
    field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
    if kind.endswith("?"):
        field.oneof_index = 0
    if bare in _KINDS:
        field.type = _KINDS[bare]
    else:
        field.type = field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{bare}"


def _record(summary: Any) -> Strings:
    return np.array(summary.SerializeToString(deterministic=True), dtype=object)


@kernel("SummaryScalar", domain=MS, host_out=[0], T=FLOATS | BOOL)
def summary_scalar(x: Tensor, *, tags: tuple[str, ...]) -> Strings:
    """One scalar for each element, in row-major order."""
    values = x.cpu().float().reshape(-1).tolist()
    if len(values) != len(tags):
        raise ValueError(f"{len(values)} values have {len(tags)} tags: {', '.join(tags)}")
    summary = _summary_class()()
    for tag, value in zip(tags, values, strict=True):
        summary.value.add(tag=tag, simple_value=value)
    return _record(summary)


@functools.cache
def bucket_limits() -> npt.NDArray[np.float64]:
    """Upper limits of buckets: ±1e-12·1.1^k up to 1e20 and the largest number, in order."""
    positive, limit = [], 1e-12
    while limit < 1e20:
        positive.append(limit)
        limit *= 1.1
    positive.append(sys.float_info.max)
    return np.array([-limit for limit in reversed(positive)] + positive)


def _sum_in_order(values: npt.NDArray[np.float64]) -> float:
    """Added one after the other, as the reference does: the bytes are the same."""
    return float(np.add.accumulate(values)[-1]) if len(values) else 0.0


@kernel("SummaryHistogram", domain=MS, host_out=[0], T=FLOATS)
def summary_histogram(x: Tensor, *, tag: str) -> Strings:
    """How many finite elements each bucket has, with their range, number, sum and squares."""
    values = x.cpu().double().reshape(-1).numpy()
    values = values[np.isfinite(values)]
    limits = bucket_limits()
    places = np.searchsorted(limits, values, side="right").clip(max=len(limits) - 1)
    counts = np.bincount(places, minlength=len(limits))
    summary = _summary_class()()
    histogram = summary.value.add(tag=tag).histo
    histogram.min = values.min(initial=sys.float_info.max)
    histogram.max = values.max(initial=-sys.float_info.max)
    histogram.num = len(values)
    with np.errstate(over="ignore"):
        histogram.sum = _sum_in_order(values)
        histogram.sum_squares = _sum_in_order(values * values)
    # the reference's list of limits ends with a stray 0
    for limit, count in zip([*limits, 0.0], [*counts, 0], strict=True):
        if not count and histogram.bucket and not histogram.bucket[-1]:
            histogram.bucket_limit[-1] = limit
        else:
            histogram.bucket_limit.append(limit)
            histogram.bucket.append(count)
    return _record(summary)


@kernel("SummaryMerge", domain=MS, host_out=[0])
def summary_merge(*summaries: Strings) -> Strings:
    """The values of all summaries in order; a tag may occur once."""
    merged = _summary_class()()
    for index, item in enumerate(summaries):
        record = _bytes(np.asarray(item, dtype=object).reshape(-1)[0])
        try:
            merged.MergeFromString(record)
        except message.DecodeError as error:
            raise ValueError(f"summary {index} is not a serialized Summary: {error}") from None
    tags = [value.tag for value in merged.value if value.tag]
    if repeated := sorted({tag for tag in tags if tags.count(tag) > 1}):
        raise ValueError(f"duplicate tag '{repeated[0]}' among the summaries")
    return _record(merged)


@kernel("SummaryText", domain=MS, host_out=[0])
def summary_text(x: Strings, *, tag: str) -> Strings:
    """The strings as a tensor of TensorBoard's text plugin."""
    strings = np.asarray(x, dtype=object)
    summary = _summary_class()()
    value = summary.value.add(tag=tag)
    value.metadata.plugin_data.plugin_name = "text"
    value.tensor.dtype = DT_STRING
    for size in strings.shape:
        value.tensor.tensor_shape.dim.add(size=size)
    value.tensor.string_val.extend(map(_bytes, strings.reshape(-1)))
    return _record(summary)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)
