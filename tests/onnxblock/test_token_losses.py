"""Losses over tokens, the classes on the last axis, against torch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from onnxtrain import Trainer, onnxblock
from onnxtrain.errors import LossError, ModelError

LENGTH, WORDS = 5, 7


def _model(scores: str = "batch, 5, 7", tokens: str = "input_ids") -> onnx.ModelProto:
    table = np.random.default_rng(0).normal(size=(WORDS, WORDS)).astype(np.float32)
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17]>
        language (int64[batch, {LENGTH}] {tokens}) => (float[{scores}] scores)
        {{ scores = Gather (table, {tokens}) }}
    """)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    return model


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, WORDS, (3, LENGTH), generator=torch.Generator().manual_seed(1))


def _expected(tokens: torch.Tensor, labels: torch.Tensor, reduction: str) -> torch.Tensor:
    table = torch.from_numpy(onnx.numpy_helper.to_array(_model().graph.initializer[0]).copy())
    scores = table[tokens].flatten(0, 1)
    return torch.nn.functional.cross_entropy(scores, labels.flatten(), reduction=reduction)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_labels_that_do_not_count(tokens: torch.Tensor, reduction: str) -> None:
    loss = onnxblock.loss.TokenCrossEntropyLoss(reduction)
    trainer = Trainer(_model(), loss=loss, device="cpu")
    labels = tokens.roll(1, 0)
    labels[:, 2] = -100
    found = trainer.loss({"input_ids": tokens, "labels": labels})
    torch.testing.assert_close(found, _expected(tokens, labels, reduction))


def test_the_next_token_is_the_label(tokens: torch.Tensor) -> None:
    trainer = Trainer(_model(), loss=onnxblock.loss.NextTokenLoss(), device="cpu")
    labels = torch.cat([tokens[:, 1:], torch.full((3, 1), -100)], 1)
    found = trainer.loss({"input_ids": tokens})
    torch.testing.assert_close(found, _expected(tokens, labels, "mean"))


def test_tokens_by_another_name(tokens: torch.Tensor) -> None:
    model = _model(tokens="words")
    trainer = Trainer(model, loss=onnxblock.loss.NextTokenLoss("words"), device="cpu")
    assert trainer.loss({"words": tokens}).isfinite()
    alone = Trainer(model, loss="next_token", device="cpu")
    torch.testing.assert_close(alone.loss({"words": tokens}), trainer.loss({"words": tokens}))


def test_tokens_that_could_be_either_input() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17]>
        two (int64[n, t] words, int64[n, t] places) => (float[n, t, 3] scores)
        <float[1, 3] table = {0, 1, 2}>
        { both = Add (words, places) scores = Gather (table, both) }
    """)
    with pytest.raises(LossError, match="two axes are 'words', 'places'"):
        Trainer(model, loss="next_token", device="cpu")


def test_the_next_token_needs_a_newer_opset() -> None:
    model = _model()
    model.opset_import[0].version = 9
    with pytest.raises(ModelError, match=r"NextTokenLoss needs opset 10, .*\n  convert .*, 10\)"):
        Trainer(model, loss="next_token", device="cpu")
