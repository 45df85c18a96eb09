"""``fit --lora``: what it says, and what is written in the end."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from onnxtrain.errors import OnnxTrainError

if TYPE_CHECKING:
    from onnxtrain.training.trainer import Trainer
    from onnxtrain.transforms.lora import LoraConfig

SUFFIX = ".onnx_adapter"
_KINDS = {"rank": int, "alpha": float, "dropout": float}


def lora_of(text: str | int | None) -> LoraConfig | None:
    """Settings from ``8`` or ``rank=8,alpha=16,dropout=0.1,targets=*query*|*value*``.

    Raises:
        OnnxTrainError: if the text says something else.
    """
    from onnxtrain.transforms.lora import LoraConfig

    if text is None:
        return None
    settings: dict[str, object] = {}
    for part in str(text).split(","):
        key, equals, value = part.strip().partition("=")
        if not equals:
            key, value = "rank", key
        try:
            settings[key] = value.split("|") if key == "targets" else _KINDS[key](value)
        except (KeyError, ValueError):
            raise OnnxTrainError(
                f"--lora does not understand '{part.strip()}'\n"
                "  give a rank such as 8, or rank=8,alpha=16,dropout=0.1,targets=*query*|*value*"
            ) from None
    return LoraConfig(**settings)  # type: ignore[arg-type]


def save(trainer: Trainer, out: pathlib.Path) -> list[pathlib.Path]:
    """Write the trained model; for ``*.onnx_adapter`` the adapters and the model that takes them.

    Gives the files that were written.
    """
    if out.suffix != SUFFIX:
        trainer.save(out)
        return [out]
    model = out.with_suffix(".onnx")
    trainer.save_adapter(out, model)
    return [out, model]
