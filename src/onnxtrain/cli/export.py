"""``onnxtrain export``: from a checkpoint to a model for inference."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxtrain.cli.fitting.adapters import SUFFIX as ADAPTER_SUFFIX
from onnxtrain.cli.fitting.adapters import targets
from onnxtrain.errors import CheckpointError, OnnxTrainError

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxtrain.graph.loading.load import Source

_THAT_MODEL = "  give the model that was trained:  onnxtrain export CHECKPOINT MODEL"


def export(
    checkpoint: Annotated[
        pathlib.Path,
        typer.Argument(metavar="CHECKPOINT", help="A checkpoint of fit, or of training artifacts."),
    ],
    model: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="MODEL",
            help="The original model; for artifacts the evaluation model, or their folder.",
        ),
    ],
    out: Annotated[
        pathlib.Path, typer.Option(help="The model to write, or FILE.onnx_adapter.")
    ] = pathlib.Path("trained.onnx"),
    output: Annotated[
        list[str] | None,
        typer.Option(help="Output to keep (repeat); artifacts only.  [default: all but the loss]"),
    ] = None,
) -> None:
    """Write a model with a checkpoint's weights.

    Adapters (fit --lora) are merged into the weights, or written as FILE.onnx_adapter with the
    model that takes them beside it.
    """
    from onnxtrain.files.atomic import data_path
    from onnxtrain.formats.models import save_model
    from onnxtrain.formats.names import ArtifactPaths
    from onnxtrain.formats.native import looks_like
    from onnxtrain.graph.loading.external import data_files
    from onnxtrain.graph.loading.load import load_model, load_source

    path = ArtifactPaths(model).eval_model if model.is_dir() else model
    _check_apart(out, (path, checkpoint, pathlib.Path(data_path(checkpoint))))
    kind = looks_like(checkpoint)
    if kind is None:
        if model.is_file() and looks_like(model) is not None:
            raise CheckpointError(
                f"'{checkpoint}' is not a checkpoint\n"
                f"  the checkpoint comes first:  onnxtrain export {model} {checkpoint}"
            )
        raise CheckpointError(
            f"'{checkpoint}' is not a checkpoint, or it is damaged\n"
            f"  give one that fit or CheckpointState wrote:  onnxtrain export CHECKPOINT {model}"
        )
    if kind == "native":
        if output:
            raise OnnxTrainError("--output is for artifacts; this checkpoint's model keeps its own")
        source = load_source(model)
        _check_apart(out, data_files(source.model))
        written = _from_native(checkpoint, source, out)
    else:
        if out.suffix == ADAPTER_SUFFIX:
            raise OnnxTrainError(
                f"cannot write '{out}': artifacts have no adapters\n  name an .onnx file"
            )
        evaluation = load_model(path)
        _check_apart(out, data_files(evaluation))
        save_model(_from_artifacts(checkpoint, evaluation, output or []), out)
        written = [out]
    for file in written:
        typer.echo(f"wrote {file}")


def _check_apart(out: pathlib.Path, read: Iterable[pathlib.Path]) -> None:
    """Refuse a result that would replace what it is made of.

    Raises:
        OnnxTrainError: if it would.
    """
    for file in read:
        if file.exists() and any(f.exists() and f.samefile(file) for f in targets(out)):
            raise OnnxTrainError(
                f"'{file}' would be overwritten by the result\n  name another file with --out"
            )


def _from_native(checkpoint: pathlib.Path, source: Source, out: pathlib.Path) -> list[pathlib.Path]:
    """Write the model, or the adapters and their model; gives the files."""
    from onnxtrain.cli.fitting import adapters
    from onnxtrain.formats.models import save_trained
    from onnxtrain.formats.native import read_native
    from onnxtrain.training.resume import LORA

    tensors, manifest = read_native(checkpoint)
    told = manifest.get(LORA)
    if isinstance(told, dict):
        made = adapters.of_checkpoint(source, told)
        return adapters.write(made, _native_values(checkpoint, tensors, made.model), out)
    if out.suffix == ADAPTER_SUFFIX:
        raise OnnxTrainError(
            f"cannot write '{out}': checkpoint '{checkpoint}' has no adapters\n  name an .onnx file"
        )
    save_trained(source, _native_values(checkpoint, tensors, source.model), out)
    return [out]


def _native_values(
    checkpoint: pathlib.Path, tensors: Mapping[str, Any], model: ir.Model
) -> dict[str, Any]:
    """The trained weights of a checkpoint, which must be those of the model."""
    from onnxtrain.training.build import working_copy
    from onnxtrain.transforms.masters import Masters

    prefix = "param/"
    values = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    graph = working_copy(model, named=values).graph
    own = graph.initializers
    shapes = {name: v.const_value.shape.numpy() for name, v in own.items() if v.const_value}
    _check_shapes(checkpoint, values, shapes)
    return Masters.in_file(graph).stored(values)


def _from_artifacts(checkpoint: pathlib.Path, model: ir.Model, outputs: list[str]) -> ir.Model:
    """The evaluation model with parameters as initializers, cut down to some outputs."""
    from onnxtrain.formats import odtc
    from onnxtrain.graph.bindings import dimensions
    from onnxtrain.transforms.extract import extract

    data = odtc.read_checkpoint(checkpoint)
    if data.nominal:
        raise CheckpointError(f"checkpoint '{checkpoint}' is nominal: it has names but no values")
    values = {**data.trainable, **data.frozen}
    _check_evaluation(model, values)
    shapes = {
        str(v.name): sizes for v in model.graph.inputs if (sizes := dimensions(v.shape)) is not None
    }
    _check_shapes(checkpoint, values, shapes)
    return extract(model, outputs or _all_but_loss(model), values)


def _check_evaluation(model: ir.Model, values: Mapping[str, Any]) -> None:
    """Refuse a model that a checkpoint of artifacts does not complete.

    Raises:
        OnnxTrainError: if it is the training model, or one that has its weights inside.
    """
    from onnxtrain.transforms.training_graph import BUFFER_SUFFIX

    cure = "  give the evaluation model of the artifacts, or their folder"
    if any(str(value.name).endswith(BUFFER_SUFFIX) for value in model.graph.inputs):
        raise OnnxTrainError(f"the model is a training model, not one for inference\n{cure}")
    if inside := [name for name in values if name in model.graph.initializers]:
        raise OnnxTrainError(
            f"the model has weights of its own, say '{inside[0]}', where that of the artifacts "
            f"takes them from the checkpoint\n{cure}"
        )


def _all_but_loss(model: ir.Model) -> list[str]:
    names = [str(value.name) for value in model.graph.outputs]
    if len(names) > 1:
        return names[1:]
    made = [str(v.name) for node in model.graph for v in node.outputs if v.name not in names]
    raise OnnxTrainError(
        f"the only output of the evaluation model is the loss '{names[0]}'\n"
        f"  name what to keep with --output; the last values are {', '.join(made[-8:])}"
    )


def _check_shapes(
    checkpoint: pathlib.Path, values: Mapping[str, Any], shapes: Mapping[str, Any]
) -> None:
    for name, array in values.items():
        if name not in shapes:
            raise CheckpointError(
                f"checkpoint '{checkpoint}' belongs to another model: it has '{name}', "
                f"which the model has not\n{_THAT_MODEL}"
            )
        if tuple(shapes[name]) != array.shape:
            raise CheckpointError(
                f"checkpoint '{checkpoint}' belongs to another model: '{name}' has shape "
                f"{list(array.shape)}, in the model {list(shapes[name])}\n{_THAT_MODEL}"
            )
