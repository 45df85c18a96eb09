"""Rows of the operators on strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from onnxtrain.testing.case import Case, given, integers, normal, only, text
from onnxtrain.types import DataType

WORDS = text(["monday", "Tuesday", "naïve", "", "Monday", "été"])
FLOAT = DataType.FLOAT


def _normalized(x: Any, **attributes: Any) -> Any:
    words = {
        (): ["monday", "Tuesday", "naïve", "", "Monday", "été"],
        ("LOWER",): ["tuesday", "naïve", "", "été"],
        ("UPPER", 1): ["TUESDAY", "NAÏVE", "", "MONDAY", "ÉTÉ"],
    }
    action = attributes.get("case_change_action")
    key = tuple(v for v in (action, attributes.get("is_case_sensitive")) if v)
    return np.array(words[key], object).reshape((1, -1) if x.ndim == 2 else -1)


NORMALIZE = [
    Case("StringNormalizer", [WORDS], _normalized, gradient=False),
    Case("StringNormalizer", [WORDS], _normalized,
         {"case_change_action": "LOWER", "stopwords": ["Monday"]}, gradient=False),
    Case("StringNormalizer", [text([["monday", "Tuesday", "naïve", "", "Monday", "été"]])],
         _normalized, gradient=False,
         attributes={"case_change_action": "UPPER", "is_case_sensitive": 1,
                     "stopwords": ["monday"]}),
    Case("StringNormalizer", [text(["a", "b"])], lambda x, **_: np.array([""], object),
         {"stopwords": ["a", "b"]}, name="nothing-left", gradient=False),
]  # fmt: skip
PARTS = [
    Case("StringConcat", [text([["a", "b"], ["c", ""]]), text(["x", "y"])], gradient=False),
    Case("StringConcat", [text("a"), text("b")], name="scalars", gradient=False),
    Case("StringSplit", [text(["a,b", "c", "d,,e", ""])], attributes={"delimiter": ","}, outputs=2,
         gradient=False),
    Case("StringSplit", [text([["a b  c", " d "], ["", "e f"]])], outputs=2, gradient=False),
    Case("StringSplit", [text(["a-b-c-d", "e"])], attributes={"delimiter": "-", "maxsplit": 1},
         outputs=2, gradient=False),
    Case("RegexFullMatch", [text([["www.a.com", "nothing"], ["", "www.b.org"]])],
         attributes={"pattern": r"www\.[a-z]+\.(com|org)"}, gradient=False),
    Case("Equal", [text([["a", "b"], ["c", "d"]]), text(["a", "d"])], gradient=False,
         name="text"),
]  # fmt: skip


def _cast(x: Any, *_: Any, to: int | None = None, **__: Any) -> torch.Tensor:
    return torch.tensor([[100.5, 2.5], [-1000.0, torch.inf]], dtype=torch.float64)


_NUMBERS = text([["100.5", "2.5"], ["-1e3", "INF"]])
CAST = [
    Case("Cast", [_NUMBERS], _cast, {"to": int(FLOAT)}, name="from-text", gradient=False),
    Case("Cast", [text(["7", "-12"])], lambda x, **_: torch.tensor([7, -12]),
         {"to": int(DataType.INT64)}, name="from-digits", gradient=False),
    Case("Cast", [given([[1, -2], [30, 4]])],
         lambda x, **_: np.array([["1", "-2"], ["30", "4"]], object),
         {"to": int(DataType.STRING)}, name="to-text", gradient=False),
    Case("Cast", [given([1.1, -0.1, 1e10, 1e-7], FLOAT)],
         lambda x, **_: np.array(["1.1", "-0.1", "1e+10", "1e-07"], object),
         {"to": int(DataType.STRING)}, name="few-digits-to-text", gradient=False),
    Case("Cast", [given([0.5, torch.nan, -torch.inf], FLOAT)],
         lambda x, **_: np.array(["0.5", "NaN", "-INF"], object),
         {"to": int(DataType.STRING)}, name="special-to-text", gradient=False),
    Case("CastLike", [_NUMBERS, normal(1)], _cast, name="from-text", gradient=False,
         dtypes=only(FLOAT)),
    Case("CastLike", [given([1, 2]), text(["x"])],
         lambda x, y, **_: np.array(["1", "2"], object), name="to-text", gradient=False),
]  # fmt: skip


def _grams(**attributes: Any) -> dict[str, Any]:
    return {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 1,
        "ngram_counts": [0, 4],
        "ngram_indexes": [0, 1, 2, 3, 4, 5, 6],
        "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7],
        **attributes,
    }


_WORD_POOL = {"pool_int64s": None, "pool_strings": [*"abcdabbcca"]}
_TOKENS = integers(2, 12, low=1, high=9, dtype=DataType.INT32)
VECTORIZE = [
    Case("TfIdfVectorizer", [_TOKENS], attributes=_grams(), name="rows", gradient=False),
    Case("TfIdfVectorizer", [integers(9, low=1, high=9)], attributes=_grams(max_skip_count=0),
         name="vector", gradient=False),
    Case("TfIdfVectorizer", [_TOKENS], name="idf", gradient=False,
         attributes=_grams(mode="IDF", weights=[0.5, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0])),
    Case("TfIdfVectorizer", [_TOKENS], name="tfidf", gradient=False,
         attributes=_grams(mode="TFIDF", weights=[0.5, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0])),
    Case("TfIdfVectorizer", [text(["a", "b", "c", "a", "b", "x"])], name="text", gradient=False,
         attributes={k: v for k, v in _grams(**_WORD_POOL).items() if v is not None}),
]  # fmt: skip

DISTINCT = [
    Case("Unique", [text(["b", "a", "b", "c"])], outputs=4, name="words", gradient=False),
    Case("Unique", [text(["b", "a", "b", "c"])], attributes={"sorted": 0}, outputs=4,
         name="words-as-found", gradient=False),
    Case("Unique", [text([["b", "a"], ["b", "a"], ["a", "c"]])],
         lambda x, axis: (np.array([["a", "c"], ["b", "a"]], object), torch.tensor([2, 0]),
                          torch.tensor([1, 1, 0]), torch.tensor([1, 2])),
         {"axis": 0}, outputs=4, name="rows-of-words", gradient=False),
]  # fmt: skip

CASES: list[Case] = [*NORMALIZE, *PARTS, *CAST, *VECTORIZE, *DISTINCT]
