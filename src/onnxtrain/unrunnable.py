"""Operators that only onnxruntime can run, or nobody, with what to do instead."""

from __future__ import annotations

import functools

import onnx

from onnxtrain.types import MS, ONNX

_BLOCKED = (
    "the file is laid out for the processor on which onnxruntime optimised it: "
    "save it with graph_optimization_level=ORT_ENABLE_EXTENDED, or take the file from before"
)
_SEARCH = (
    "it searches for text with a model that it holds in an attribute: "
    "save that model as a file of its own and train it"
)
_DECODING = (
    "it makes one token after another from what it remembers and has no training form: "
    "train the model from before it was optimised for generating text"
)
_PACKED = (
    "its weights are packed for running alone: train the model from before it was quantised, "
    "or write it with MatMulNBits"
)
_WORDS = "it splits text into words: cut the model behind it, and feed the words or their ids"
_SPARSE = "it takes a sparse matrix, which sessions cannot be fed: use MatMul with a dense one"
_LEFT = "if a converter left it in the file, convert the model again, with what ONNX has instead"
_COMPILED = "it holds code that was compiled for one device: take the file from before"

_UNRUNNABLE: dict[tuple[str, str], str] = {
    ("com.microsoft.nchwc", "*"): _BLOCKED,
    ("com.ms.internal.nhwc", "*"): _BLOCKED,
    (MS, "BeamSearch"): _SEARCH,
    (MS, "GreedySearch"): _SEARCH,
    (MS, "Sampling"): _SEARCH,
    (MS, "WhisperBeamSearch"): _SEARCH,
    **{
        (MS, op): _DECODING
        for op in (
            *("BifurcationDetector", "DecoderAttention", "DecoderMaskedMultiHeadAttention"),
            *("DecoderMaskedSelfAttention", "PagedAttention", "SparsePagedAttention"),
        )
    },
    **{
        (MS, op): _PACKED
        for op in (
            *("DequantizeBFP", "DequantizeWithOrder", "GemmFloat8", "MatMulFpQ4"),
            *("MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight", "QMoE"),
            *("QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization"),
            *("QOrderedLongformerAttention", "QOrderedMatMul", "QuantizeBFP"),
            "QuantizeWithOrder",
        )
    },
    (MS, "Tokenizer"): _WORDS,
    (MS, "SparseToDenseMatMul"): _SPARSE,
    (MS, "EPContext"): _COMPILED,
    (MS, "Snpe"): _COMPILED,
}
"""Reasons by domain and operator; a star stands for all of a domain."""


def why_unrunnable(domain: str, op: str) -> str | None:
    """Why an operator cannot be run and what helps, or None if nothing is known of it."""
    return _UNRUNNABLE.get((domain, op)) or _UNRUNNABLE.get((domain, "*"))


def why_unknown(domain: str, op: str) -> str | None:
    """Where an operator may come from that ONNX does not have, under its name; None for others."""
    if domain not in (ONNX, "ai.onnx") or op in _of_onnx():
        return None
    return f"ONNX has no operator {op}: {_LEFT}"


@functools.cache
def _of_onnx() -> frozenset[str]:
    """Operators that ONNX has or had in some opset."""
    schemas = onnx.defs.get_all_schemas_with_history()
    return frozenset(schema.name for schema in schemas if schema.domain == ONNX)
