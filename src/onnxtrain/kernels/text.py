"""Text: tensors of strings are numpy arrays of Python strings, and never leave the host."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from onnxtrain.kernels.dtypes import array_of
from onnxtrain.kernels.narrow import convert
from onnxtrain.kernels.registry import kernel
from onnxtrain.kernels.tensor.cast import CASTABLE
from onnxtrain.kernels.tensor.select import unique
from onnxtrain.types import TEXT, DataType, dtype_name

Text = npt.NDArray[np.object_]
Types = Sequence[tuple[int, Any]]
_CASES: dict[str, Callable[[str], str]] = {
    "NONE": str,
    "LOWER": str.lower,
    "UPPER": str.upper,
}
_SPECIAL = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}
"""How ONNX writes the numbers that are none."""


def each(function: Callable[[str], Any], x: Text) -> Text:
    """A function of a string applied to every element."""
    return np.array([function(item) for item in x.reshape(-1)], object).reshape(x.shape)


@kernel("StringConcat", since=20, text=True, T=TEXT)
def string_concat(x: Text, y: Text) -> Text:
    """Each string of x followed by that of y."""
    return np.asarray(x + y, object)


@kernel("Unique", since=11, text=True, outputs=4, T=TEXT)
def unique_words(
    x: Text, *, axis: int | None = None, sorted: int = 1
) -> tuple[Text, Tensor, Tensor, Tensor]:
    """Unique of the places of words in alphabetical order."""
    words, places = np.unique(x.astype(str), return_inverse=True)
    numbers = torch.from_numpy(places.reshape(x.shape).astype(np.int64))
    found, *rest = unique(numbers, axis=axis, sorted=sorted)
    return words.astype(object)[found.numpy()], rest[0], rest[1], rest[2]


@kernel("StringSplit", since=20, text=True, outputs=2, T1=TEXT)
def string_split(
    x: Text, *, delimiter: str | None = None, maxsplit: int = -1
) -> tuple[Text, Tensor]:
    """The parts of each string between delimiters (or white space), and how many there are."""
    parts = [item.split(delimiter or None, maxsplit) for item in x.reshape(-1)]
    counts = [len(item) for item in parts]
    most = max(counts, default=0)
    padded = [[*item, *[""] * (most - len(item))] for item in parts]
    numbers = torch.tensor(counts, dtype=torch.int64).reshape(x.shape)
    return np.array(padded, object).reshape(*x.shape, most), numbers


@kernel("RegexFullMatch", since=20, text=True, T1=TEXT)
def regex_full_match(x: Text, *, pattern: str) -> Tensor:
    """Whether all of each string matches a regular expression."""
    matches = re.compile(pattern).fullmatch
    found = [matches(item) is not None for item in x.reshape(-1)]
    return torch.tensor(found, dtype=torch.bool).reshape(x.shape)


@kernel("StringNormalizer", since=10, text=True)
def string_normalizer(
    x: Text,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] = (),
) -> Text:
    """A row of words without stop words, in upper or lower case; [''] if none is left.

    The locale changes nothing: Python's case conversion follows Unicode everywhere.
    """
    if x.ndim > 2 or (x.ndim == 2 and len(x) != 1):
        raise ValueError(f"the words must be [C] or [1, C], not {list(x.shape)}")
    change = _CASES[case_change_action]
    same = _CASES["NONE" if is_case_sensitive else "LOWER"]
    stops = {same(word) for word in stopwords}
    words = [change(word) for word in x.reshape(-1) if same(word) not in stops] or [""]
    return np.array(words, object).reshape([1, -1] if x.ndim == 2 else [-1])


@kernel("Equal", since=19, text=True, T=TEXT)
def equal(a: Text, b: Text) -> Tensor:
    """Whether two strings are the same."""
    return torch.from_numpy(np.asarray(a == b, bool))


@kernel("Cast", since=9, text=True, T1=TEXT)
def cast_from_text(input: Text, *, to: int, saturate: int = 1, round_mode: str = "up") -> Any:
    """The numbers that strings stand for (or the strings themselves)."""
    return _from_text(input, DataType(to), saturate, round_mode)


@kernel("Cast", since=9, T1=CASTABLE, T2=TEXT)
def cast_to_text(input: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Text:
    """The numbers as strings."""
    return _to_text(input)


@kernel("CastLike", since=15, text=True, needs=["out_types"], T1=TEXT)
def cast_like_from_text(
    input: Text,
    target_type: Any,
    *,
    saturate: int = 1,
    round_mode: str = "up",
    out_types: Types,
) -> Any:
    """The numbers that strings stand for, in the type of another tensor."""
    return _from_text(input, DataType(out_types[0][0]), saturate, round_mode)


@kernel("CastLike", since=15, text=True, T1=CASTABLE, T2=TEXT)
def cast_like_to_text(
    input: Tensor, target_type: Text, *, saturate: int = 1, round_mode: str = "up"
) -> Text:
    """The numbers as strings."""
    return _to_text(input)


def _from_text(x: Text, dtype: DataType, saturate: int, round_mode: str) -> Any:
    if dtype == DataType.STRING:
        return x.copy()
    numbers = [_number(item) for item in x.reshape(-1)]
    whole = all(isinstance(number, int) for number in numbers) and numbers
    if dtype.is_integer() and not whole:
        for word, number in zip(x.reshape(-1), numbers, strict=True):
            if not math.isfinite(number):
                raise ValueError(f"'{word}' is no number of type {dtype_name(dtype)}")
    large = dtype == DataType.UINT64 and min(numbers, default=0) >= 0
    exact = torch.uint64 if large else torch.int64
    values = torch.tensor(numbers, dtype=exact if whole else torch.float64)
    return convert(values.reshape(x.shape), dtype, saturate, round_mode)


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _to_text(x: Tensor) -> Text:
    """As few digits as tell a number from others of its type; those of 16 bits as float32."""
    if x.dtype is torch.bool:
        x = x.to(torch.uint8)
    if x.dtype not in (torch.float32, torch.float64) and x.dtype.is_floating_point:
        x = x.to(torch.float32)
    array = array_of(x)
    words = [_SPECIAL.get(str(item), str(item)) for item in array.reshape(-1)]
    return np.array(words, object).reshape(array.shape)


@kernel("TfIdfVectorizer", since=9, text=True, host=["x"], needs=["device"])
def tf_idf_vectorizer(
    x: Any,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: tuple[int, ...],
    ngram_indexes: tuple[int, ...],
    pool_int64s: tuple[int, ...] | None = None,
    pool_strings: tuple[str, ...] | None = None,
    weights: tuple[float, ...] | None = None,
    device: torch.device,
) -> Tensor:
    """y[ngram_indexes[i]] = how often n-gram i of the pool is in the row, weighted.

    Element j of the weights belongs to element j of y.
    """
    grams = _pool(tuple(pool_int64s or pool_strings or ()), ngram_counts, ngram_indexes)
    size = max(ngram_indexes) + 1
    rows = x if x and isinstance(x[0], list) else [x if isinstance(x, list) else [x]]
    counts = torch.zeros(len(rows), size)
    for row, target in zip(rows, counts, strict=True):
        for gram in _grams(row, min_gram_length, max_gram_length, max_skip_count):
            if gram in grams:
                target[grams[gram]] += 1
    if mode == "IDF":
        counts = counts.clamp(max=1)
    if mode != "TF" and weights:
        counts = counts * torch.tensor(weights)
    return (counts if rows is x else counts[0]).to(device)


@functools.lru_cache(maxsize=16)
def _pool(
    items: tuple[Any, ...], starts: tuple[int, ...], indexes: tuple[int, ...]
) -> dict[tuple[Any, ...], int]:
    """Place in the output of each n-gram; those of n items begin at starts[n - 1]."""
    found: dict[tuple[Any, ...], int] = {}
    places = iter(indexes)
    for length, (start, end) in enumerate(zip(starts, [*starts[1:], len(items)], strict=True), 1):
        for at in range(start, end - length + 1, length):
            found[items[at : at + length]] = next(places)
    return found


def _grams(row: Sequence[Any], shortest: int, longest: int, most_skips: int) -> Any:
    """All n-grams of a row, with up to some items left out between neighbours."""
    for length in range(shortest, longest + 1):
        for step in range(1, 2 if length == 1 else most_skips + 2):
            reach = step * (length - 1) + 1
            for at in range(len(row) - reach + 1):
                yield tuple(row[at : at + reach : step])
