"""Operators that only onnxruntime can run, each with what to do instead."""

from __future__ import annotations

from onnxtrain.types import MS

_BLOCKED = (
    "the file is laid out for the processor on which onnxruntime optimised it: "
    "save it with graph_optimization_level=ORT_ENABLE_EXTENDED, or take the file from before"
)
_SEARCH = (
    "it searches for text with a model that it holds in an attribute: "
    "save that model as a file of its own and train it"
)
_COMPILED = "it holds code that was compiled for one device: take the file from before"

_UNRUNNABLE: dict[tuple[str, str], str] = {
    ("com.microsoft.nchwc", "*"): _BLOCKED,
    ("com.ms.internal.nhwc", "*"): _BLOCKED,
    (MS, "BeamSearch"): _SEARCH,
    (MS, "GreedySearch"): _SEARCH,
    (MS, "Sampling"): _SEARCH,
    (MS, "WhisperBeamSearch"): _SEARCH,
    (MS, "EPContext"): _COMPILED,
    (MS, "Snpe"): _COMPILED,
}
"""Reasons by domain and operator; a star stands for all of a domain."""


def why_unrunnable(domain: str, op: str) -> str | None:
    """Why an operator cannot be run and what helps, or None if nothing is known of it."""
    return _UNRUNNABLE.get((domain, op)) or _UNRUNNABLE.get((domain, "*"))
