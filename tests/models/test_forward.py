"""Whole exported models give what onnxruntime gives, for any batch size and sequence length."""

from __future__ import annotations

import architectures
import numpy as np
import onnxruntime
import pytest
from architectures import example, optimized

from onnxtrain import InferenceSession

PROVIDERS = ["CPU", pytest.param("CUDA", marks=pytest.mark.gpu)]
SIZES = [(2, 6), (3, 9)]
"""Samples, and tokens of each where there are any; the first is what was exported."""


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("form", ["exported", "optimized"])
@pytest.mark.parametrize("name", architectures.NAMES)
def test_outputs_are_those_of_onnxruntime(name: str, form: str, provider: str) -> None:
    whole = example(name)
    model = whole.model if form == "exported" else optimized(name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    peer = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    ours = InferenceSession(model, providers=[f"{provider}ExecutionProvider"])
    for samples, length in SIZES:
        feeds = {key: value.numpy() for key, value in whole.batch(samples, length).items()}
        (found,) = ours.run(None, feeds)
        (expected,) = peer.run(None, feeds)
        assert np.ptp(expected, axis=0).max() > 0.1, "the model does not see what it is given"
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
