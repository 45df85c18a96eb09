"""A model with adapters in training, and the files that come of it."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtrain.errors import CheckpointError, ParameterError
from onnxtrain.formats.adapter import read_adapter, write_adapter
from onnxtrain.formats.models import save_model, save_trained, trained_model
from onnxtrain.graph.loading.load import Source
from onnxtrain.training.selection import Selection
from onnxtrain.transforms.lora import (
    LoraConfig,
    attach,
    attach_overridable,
    delta,
    initial_values,
)
from onnxtrain.transforms.lora_layers import A_SUFFIX, B_SUFFIX, Layer, Layout, find_layers
from onnxtrain.transforms.weights.patterns import TRAINABLE, patterns_of

Arrays = Mapping[str, npt.NDArray[Any]]
_OVERRIDABLE_SINCE = 4
"""The first IR version in which an initializer that is an input too is a default."""


class Adapters:
    """Adapters of one model.

    Args:
        source: The model and what it was read from; it is not changed.
        config: Rank, factor and layers.
        seed: Seed of the first values; None for new ones each time.

    Raises:
        ParameterError: if no layer can take one, or the model has adapters already.

    Attributes:
        model: A copy of the model with the adapters in it, for training.
        first: The values that the adapters begin with.
    """

    def __init__(self, source: Source, config: LoraConfig, seed: int | None) -> None:
        self.source = source
        self.config = config
        self.model = source.model.clone()
        self._layers = find_layers(self.model, config.targets)
        values = initial_values(self._layers, config.rank, seed)
        _refuse_others(self.model, values)
        self._names = list(values)
        self.first = values
        attach(self.model, self._layers, values, scale=config.scale, dropout=config.dropout)

    def trainable(self, wanted: str | Sequence[str] | Selection) -> Selection:
        """The adapters, and what else was named; ``auto`` names nothing."""
        if not isinstance(wanted, Selection):
            listed = patterns_of(wanted, TRAINABLE)
            wanted = Selection(include=[] if wanted == "auto" else listed)
        include = [f"*{A_SUFFIX}", f"*{B_SUFFIX}", *wanted.include]
        return Selection(include, wanted.exclude, wanted.last, wanted.biases)

    def loaded(self, path: str | os.PathLike[str]) -> dict[str, npt.NDArray[Any]]:
        """Values of the adapters from a file of adapters, of which B has the factor in it.

        Raises:
            CheckpointError: if it cannot be read, or is for other layers or another rank.
        """
        tensors = read_adapter(path)
        _check_layers(path, tensors, self._names)
        values = {}
        for layer in self._layers:
            shapes = dict(zip((layer.a, layer.b), layer.shapes(self.config.rank), strict=True))
            for name, shape in shapes.items():
                if tensors[name].shape != shape:
                    raise CheckpointError(
                        f"adapter '{os.fspath(path)}' is of another rank or model: '{name}' is "
                        f"{list(tensors[name].shape)} in it, {list(shape)} here"
                    )
            b = tensors[layer.b]
            values[layer.a] = tensors[layer.a]
            values[layer.b] = (b.astype(np.float64) / self.config.scale).astype(b.dtype)
        return values

    def begin_with(self, values: Arrays) -> None:
        """Take other first values; adapters that are not trained keep them."""
        self.first.update(values)
        for name, array in values.items():
            self.model.graph.initializers[name].const_value = ir.tensor(array, name=name)

    def save(self, values: Arrays, path: str | os.PathLike[str]) -> None:
        """Write the model with the adapters added to its weights.

        An adapter of a quantised weight, or of one that is used in other ways too, stays as nodes.
        """
        changed = {name: array for name, array in values.items() if name not in self._names}
        kept = [layer for layer in self._layers if not layer.mergeable]
        for layer in self._layers:
            if layer.mergeable:
                name, new = self._merged(layer, values)
                changed[name] = new
        if not kept:
            save_trained(self.source, changed, path)
            return
        model = trained_model(self.source, changed)
        attach(model, _same(model, kept, self.config), self.scaled(values))
        save_model(model, path)

    def scaled(self, values: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The tensors of the adapters; B has the factor in it."""
        scaled = {}
        for layer in self._layers:
            b = values[layer.b]
            scaled[layer.a] = values[layer.a]
            scaled[layer.b] = (b.astype(np.float64) * self.config.scale).astype(b.dtype)
        return scaled

    def save_adapter(self, values: Arrays, path: str | os.PathLike[str]) -> None:
        """Write the adapters alone, as onnxruntime loads them."""
        write_adapter(path, self.scaled(values))

    def save_base(self, values: Arrays, path: str | os.PathLike[str]) -> None:
        """Write the model, unchanged but for inputs that adapters of any rank can be fed to."""
        rest = {name: array for name, array in values.items() if name not in self._names}
        model = trained_model(self.source, rest)
        model.ir_version = max(model.ir_version, _OVERRIDABLE_SINCE)
        attach_overridable(model, _same(model, self._layers, self.config))
        save_model(model, path)

    def _merged(self, layer: Layer, values: Arrays) -> tuple[str, npt.NDArray[Any]]:
        """The weight of a layer and its new value."""
        base = layer.weight.base
        name = str(base.name)
        old = values[name] if name in values else _constant(base)
        change = self.config.scale * delta(layer, values[layer.a], values[layer.b])
        return name, (old.astype(np.float64) + change).astype(old.dtype)


def config_of(source: Source, path: str | os.PathLike[str]) -> LoraConfig:
    """The rank and the layers of a file of adapters for a model; the factor is in its values.

    Raises:
        CheckpointError: if it cannot be read, or has layers that the model has not.
    """
    tensors = read_adapter(path)
    found = {layer.a: layer for layer in find_layers(source.model, "*")}
    layers = [found[name] for name in tensors if name in found]
    _check_layers(path, tensors, [name for layer in layers for name in (layer.a, layer.b)])
    targets = [glob.escape(str(layer.weight.base.name)) for layer in layers]
    layer = layers[0]
    axis = 1 if layer.layout is Layout.RIGHT else 0
    groups = layer.sites[0].groups if layer.layout is Layout.CONV else 1
    return LoraConfig(rank=tensors[layer.a].shape[axis] // groups, targets=targets)


def _refuse_others(model: ir.Model, names: Collection[str]) -> None:
    """Refuse a model that has adapters where new ones would go.

    Raises:
        ParameterError: if it has tensors of their names.
    """
    if there := [name for name in names if name in model.graph.initializers]:
        raise ParameterError(
            f"no adapters can be added: the model has '{there[0]}' already\n"
            f"  train those that it has, as trainable '*{A_SUFFIX}' and '*{B_SUFFIX}', or give the "
            "model from before them"
        )


def _check_layers(path: str | os.PathLike[str], tensors: Arrays, own: Sequence[str]) -> None:
    """Refuse a file whose adapters are not those of the model.

    Raises:
        CheckpointError: if it has others, or none.
    """
    more, less = sorted(tensors.keys() - set(own)), sorted(set(own) - tensors.keys())
    if more or less or not own:
        shown = [f"it has '{more[0]}'" if more else "", f"it lacks '{less[0]}'" if less else ""]
        raise CheckpointError(
            f"adapter '{os.fspath(path)}' does not belong to these layers: "
            f"{', '.join(filter(None, shown)) or 'it is empty'}\n"
            f"  the layers have  {', '.join(own[:6]) or 'no adapters'}"
        )


def _constant(value: ir.Value) -> npt.NDArray[Any]:
    node = value.producer()
    tensor = value.const_value if node is None else node.attributes["value"].as_tensor()
    assert tensor is not None
    return tensor.numpy()


def _same(model: ir.Model, layers: Sequence[Layer], config: LoraConfig) -> list[Layer]:
    """The layers of another copy of the model."""
    names = {layer.name for layer in layers}
    return [layer for layer in find_layers(model, config.targets) if layer.name in names]
