"""What onnxruntime-training 1.19.2 made of small models, against what the runtime makes of them.

Two programs that sum in different orders differ by rounding. An output agrees if it has the type
and shape of the reference's, if it is NaN or infinite in the same places, and if no element is
further away than so many rounding steps (``STEPS``) of the largest finite magnitude in the
reference's output. Whole numbers, truth values and strings must be equal. Outputs that the
reference's kernels never make (the statistics of SkipLayerNormalization, the lengths of an empty
concatenation) have nothing to agree with.

Where the reference refuses a model, the runtime must do so with an error that names the cause.
"""

import fnmatch
import functools
import json
import pathlib
import re
from typing import Any

import numpy as np
import onnx
import pytest

from onnxtrain.errors import OnnxTrainError
from onnxtrain.graph import schemas
from onnxtrain.runtime.session import InferenceSession
from onnxtrain.testing.model import PROVIDERS

FOLDER = pathlib.Path(__file__).parent.parent / "golden" / "operators"
STEPS = {"float16": 2, "float32": 64, "float64": 64}
"""Allowed rounding steps by element type; 16-bit results are computed in float32."""

DEVIATIONS = {
    "AdamOptimizer-scaled-float": "the reference's CPU kernel ignores the loss scale",
    "AdamOptimizer-clipped-float": "the reference's CPU kernel ignores the gradient norm",
    "AdamOptimizer-not_clipped-float": "the reference's CPU kernel ignores the loss scale",
    "AdamOptimizer-no_signal-float": "the reference's CPU kernel ignores the update signal",
    "AdamOptimizer-alpha": "like the reference's CUDA kernel, ours takes any factor",
    "AdamOptimizer-beta": "like the reference's CUDA kernel, ours takes any factor",
    "AdamOptimizer-lambda": "like the reference's CUDA kernel, ours takes any factor",
    "AdamOptimizer-epsilon": "like the reference's CUDA kernel, ours takes any factor",
    "AveragePoolGrad-volume*": "the reference overwrites where windows of a volume overlap",
    "AveragePoolGrad-same_*": "the reference ignores auto_pad",
    "AveragePoolGrad-*dilations*": "the reference ignores dilations",
    "AveragePoolGrad-ceil_count_padding-*": "the reference counts elements beyond the padding",
    "AveragePoolGrad-ceil_pads_count_*": "the reference counts elements beyond the padding",
    "BatchNormInternal-outputs": "the statistics may be left out: nothing depends on them",
    "ConvGrad-same_*": "the reference ignores auto_pad",
    "DivGrad-empty-float": "the reference cannot reduce an empty gradient",
    "DropoutGrad-inference-*": "the reference ignores training_mode",
    "DropoutGrad-masked_nan": "the reference multiplies by the mask, so that dropped NaN stays",
    "FakeQuant-not-finite-float": "the reference converts infinity to an integer",
    "FakeQuant-special": "the reference converts infinity to an integer",
    "FakeQuant-fraction": "the reference's CPU kernel cuts the zero point to an integer",
    "FakeQuantGrad-masked_nan": "the reference multiplies by the mask, so that masked NaN stays",
    "FastGeluGrad-default-double": "the reference has its constants in float32",
    "GRUTraining-direction": "ours runs backwards too",
    "GRUTraining-hidden_size": "the size is read off the weights",
    "Group-float": "the reference's kernel contradicts its schema, which has rank 0",
    "InplaceClipGradNorm-nan*": "like the reference's CUDA kernel, ours leaves a NaN norm alone",
    "LSTMTraining-direction": "ours runs backwards too",
    "LSTMTraining-hidden_size": "the size is read off the weights",
    "LayerNormalization-broadcast_scale-v21-float": "the reference has an older definition",
    "LayerNormalization-mixed_types-v13-float": "the reference's default epsilon is a float32",
    "LogSoftmaxGrad-axis_2": "the axis may be the rank, as for the two parts that it cuts",
    "MaxPoolGrad-[!l]*_columns-*": "the reference ignores storage_order",
    "PassThrough-float": "the reference insists on sharing memory with a feed",
    "ReluGrad-special": "a NaN input counts as positive, as in torch",
    "Scale-down": "the reference rounds the scale to float32",
    "Scale-down-int64-double": "the reference rounds the scale to float32",
    "SkipSimplifiedLayerNormalization-all-float": "the reference takes the bias for another input",
    "SliceGrad-backwards-float": "the reference cannot step backwards on the last axis",
    "SliceGrad-backwards-to-the-end-float": "the reference cannot step backwards on the last axis",
    "SliceGrad-large-steps-float": "the reference cannot step backwards on the last axis",
    "SoftmaxCrossEntropy-reduction=none-float": "the reference sums instead",
    "SoftmaxCrossEntropyLossGrad-all_ignored-double": "the reference's float64 ignores no label",
    "SoftmaxCrossEntropyLossGrad-ignore*-double": "the reference's float64 ignores no label",
    "SoftmaxCrossEntropyLossInternal-2d_mean_None_None-double": (
        "the reference's float64 ignores no label"
    ),
    "SoftmaxGrad-axis_2": "the axis may be the rank, as for the two parts that it cuts",
    "SoftmaxGrad-vector": "the axis may be the rank, as for the two parts that it cuts",
    "SoftmaxGrad_13-scalar": "a scalar is taken as one element, as in torch",
    "SparseSoftmaxCrossEntropy*-none_*": "the reference sums instead",
    "SparseSoftmaxCrossEntropy*-no_weight*": "like the reference's CUDA kernel: no weight, no loss",
}
"""Cases (by patterns of their names) that must not agree, and why."""
UNBIASED_ON_CUDA = {"BatchNormInternal": 2}
"""Outputs that follow the reference's CUDA kernels on a GPU, not the CPU ones stored here."""


@functools.cache
def arrays() -> dict[str, Any]:
    with np.load(FOLDER / "values.npz") as file:
        return dict(file)


def stored(place: Any) -> Any:
    """A fresh copy of the value at a place of ``cases.json``."""
    if place is None:
        return None
    if isinstance(place, list):
        dtype, shape, offset = place
        flat = arrays()[dtype][offset : offset + int(np.prod(shape))]
        return flat.reshape(shape).copy()
    if "sequence" in place:
        return [stored(item) for item in place["sequence"]]
    return np.array([bytes.fromhex(s) for s in place["strings"]], object).reshape(place["shape"])


CASES = json.loads((FOLDER / "cases.json").read_text())
REASONS = {
    case["case"]: reason
    for case in CASES
    for pattern, reason in DEVIATIONS.items()
    if fnmatch.fnmatchcase(case["case"], pattern)
}
VALUES = [pytest.param(case, id=case["case"]) for case in CASES if "outputs" in case]
ERRORS = [pytest.param(case, id=case["case"]) for case in CASES if "error" in case]


def run(case: dict[str, Any], device: str = "cpu") -> list[Any]:
    feeds = {name: stored(place) for name, place in case["inputs"].items()}
    model = onnx.parser.parse_model(case["model"])
    return InferenceSession(model, providers=[PROVIDERS[device]]).run(None, feeds)


def difference(ours: Any, theirs: Any) -> str | None:
    """Where an output and the reference's do not agree, or None."""
    if theirs is None:
        return None
    if isinstance(theirs, list):
        if len(ours) != len(theirs):
            return f"{len(ours)} tensors instead of {len(theirs)}"
        return next(filter(None, map(difference, ours, theirs)), None)
    ours = np.asarray(ours)
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{ours.dtype}{ours.shape} instead of {theirs.dtype}{theirs.shape}"
    if theirs.dtype.kind != "f":
        return None if np.array_equal(ours, theirs) else f"{ours} instead of {theirs}"
    usual = np.isfinite(theirs)
    if not np.array_equal(ours[~usual], theirs[~usual], equal_nan=True):
        return f"NaN or infinity differ: {ours} instead of {theirs}"
    allowed = (
        STEPS[theirs.dtype.name] * np.finfo(theirs.dtype).eps * np.abs(theirs[usual]).max(initial=0)
    )
    error = np.abs(ours[usual] - theirs[usual]).max(initial=0)
    return None if error <= allowed else f"error {error:.3g} is above {allowed:.3g}"


@pytest.mark.parametrize("case", VALUES)
def test_values(case: dict[str, Any], device: str) -> None:
    ours, theirs = run(case, device), [stored(place) for place in case["outputs"]]
    differs = UNBIASED_ON_CUDA.get(case["op"], len(theirs))
    if device == "cuda" and differs < len(theirs):
        theirs[differs] = None
    found = [difference(*pair) for pair in zip(ours, theirs, strict=True)]
    if reason := REASONS.get(case["case"]):
        assert any(found), f"it agrees now, although {reason}"
    else:
        assert not any(found), found


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: dict[str, Any]) -> None:
    if reason := REASONS.get(case["case"]):
        assert run(case), reason
        return
    with pytest.raises(OnnxTrainError) as caught:
        run(case)
    assert re.search(case["says"], str(caught.value)), str(caught.value)


def test_every_deviation_is_of_a_case() -> None:
    names = [case["case"] for case in CASES]
    assert [p for p in DEVIATIONS if not fnmatch.filter(names, p)] == []


def test_operators_that_the_reference_runs_have_values() -> None:
    covered = {case["op"] for case in CASES if "outputs" in case}
    assert len(covered & {op for _, op in schemas.training_ops()}) == 65
