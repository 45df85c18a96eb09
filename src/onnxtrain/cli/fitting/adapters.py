"""``fit --lora``: what it says, and what is written in the end."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onnxtrain.errors import CheckpointError, OnnxTrainError, OptionError

if TYPE_CHECKING:
    from onnxtrain.graph.loading.load import Source
    from onnxtrain.training.adapters import Adapters
    from onnxtrain.training.trainer import Trainer
    from onnxtrain.transforms.lora import LoraConfig

SUFFIX = ".onnx_adapter"
_KINDS = {"rank": int, "alpha": float, "dropout": float}


def targets(out: pathlib.Path) -> list[pathlib.Path]:
    """The files that are written: beside adapters also the model that takes them."""
    return [out, out.with_suffix(".onnx")] if out.suffix == SUFFIX else [out]


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
    try:
        return LoraConfig(**settings)  # type: ignore[arg-type]
    except OptionError as error:
        raise OptionError(f"{error}\n  give  --lora 8, say") from None


def lora_for(text: str | None, adapter: pathlib.Path | None, model: pathlib.Path) -> Any:
    """Settings by ``--lora``, else those that an adapter needs to go on from it."""
    if text is not None or adapter is None:
        return lora_of(text)
    from onnxtrain.graph.loading.load import load_source
    from onnxtrain.training.adapters import config_of

    return config_of(load_source(model), adapter)


def of_checkpoint(source: Source, settings: Mapping[str, Any]) -> Adapters:
    """Adapters of a model with the settings that a checkpoint has.

    Raises:
        CheckpointError: if the checkpoint does not tell them.
    """
    from onnxtrain.training.adapters import Adapters
    from onnxtrain.transforms.lora import LoraConfig

    try:
        config = LoraConfig(**settings)
    except TypeError:
        raise CheckpointError("the settings of the adapters in it are not known") from None
    return Adapters(source, config, seed=0)


def write(made: Adapters, values: Mapping[str, Any], out: pathlib.Path) -> list[pathlib.Path]:
    """Write a model with adapters merged into it, or adapters and the model that takes them."""
    files, values = targets(out), {**made.first, **values}
    if len(files) == 1:
        made.save(values, out)
    else:
        made.save_adapter(values, out)
        made.save_base(values, files[1])
    return files


def told(trainer: Trainer) -> str:
    """How much of a model its adapters train."""
    from onnxtrain.transforms.lora_layers import A_SUFFIX, B_SUFFIX

    own = [d for d in trainer.decisions if d.name.endswith((A_SUFFIX, B_SUFFIX))]
    size = sum(d.elements for d in own if d.trained)
    # Factors of the adapters are constants whose names begin as those of their tensors.
    added = A_SUFFIX.removesuffix("_A")
    model = sum(d.elements for d in trainer.decisions if added not in d.name)
    count = sum(d.name.endswith(A_SUFFIX) for d in own)
    layers = "1 layer" if count == 1 else f"{count} layers"
    rank = trainer.lora.rank if trainer.lora is not None else 0
    return (
        f"adapters of rank {rank} in {layers}: {size:,} elements beside the {model:,} of "
        f"the model ({size / max(model, 1):.2%})"
    )


def save(trainer: Trainer, out: pathlib.Path) -> list[pathlib.Path]:
    """Write the trained model; for ``*.onnx_adapter`` the adapters and the model that takes them.

    Gives the files that were written.
    """
    files = targets(out)
    if len(files) == 1:
        trainer.save(out)
    else:
        trainer.save_adapter(out, files[1])
    return files
