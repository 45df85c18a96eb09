"""``onnxtrain plan``: the Python function that a model (or its training step) becomes."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Annotated

import typer

from onnxtrain.cli.fitting import fit_options as options
from onnxtrain.errors import OnnxTrainError

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxtrain.runtime.plan import Plan, Step
    from onnxtrain.transforms.recipe import Waiting
    from onnxtrain.types import Provider


def plan(
    model: Annotated[pathlib.Path, typer.Argument(metavar="MODEL", help="The ONNX model.")],
    device: Annotated[str, typer.Option(help="cpu or cuda; it need not be there.")] = "cpu",
    training: Annotated[
        bool, typer.Option("--training", help="The training step and the update, not inference.")
    ] = False,
    loss: Annotated[
        str | None, typer.Option(help="Loss of the training step, as fit takes it.")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="adamw, adam, lamb, sgd or momentum.")] = "adamw",
    precision: options.Precision = options.PrecisionName.fp32,
    recompute: options.Recompute = options.RecomputeWay.none,
    compress: options.Compress = options.Codec.none,
    memory: Annotated[
        bool, typer.Option("--memory", help="Bytes alive after each call, and the peak.")
    ] = False,
    dimensions: Annotated[
        list[str] | None,
        typer.Option("--dim", help="NAME=SIZE for a named dimension of the inputs (repeat)."),
    ] = None,
) -> None:
    """Print the Python that a model runs as."""
    from onnxtrain.cli.device import provider_of
    from onnxtrain.graph.loading.load import load_model, load_source
    from onnxtrain.transforms.recipe import Waiting

    if (loss is not None) != training:
        raise OnnxTrainError("--training and --loss belong together: give both or none")
    for option, given in (
        ("--precision", precision is not options.PrecisionName.fp32),
        ("--recompute", recompute is not options.RecomputeWay.none),
        ("--compress", compress is not options.Codec.none),
    ):
        if given and loss is None:
            raise OnnxTrainError(f"{option} is that of a training step: give --training and --loss")
    provider = provider_of(device)
    loaded = load_source(model).model if training else load_model(model)
    _set_dimensions(loaded, dimensions or [])
    if loss is None:
        made = [_inference(loaded)]
    else:
        made = _training(loaded, loss, optimizer, precision.value)
    for item in made:
        _print(item, provider, memory, Waiting(recompute.word, compress.word))


@dataclasses.dataclass(frozen=True)
class Planned:
    """A model to plan: inputs that are bound, what was fused, whether it is an optimizer."""

    title: str
    model: ir.Model
    state: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    updates: bool = False


def _set_dimensions(model: ir.Model, texts: list[str]) -> None:
    """Give named dimensions of the inputs a size."""
    from onnxtrain.runtime.replacing import fix_sizes

    pairs = [text.partition("=")[::2] for text in texts]
    if bad := [f"{name}={size}" for name, size in pairs if not name or not _is_size(size)]:
        raise OnnxTrainError(
            f"--dim takes NAME=SIZE, not '{bad[0].rstrip('=')}'\n  give  --dim batch=32, say"
        )
    sizes = {name: int(size) for name, size in pairs}
    known = {
        dim.value
        for value in (*model.graph.inputs, *model.graph.outputs)
        for dim in value.shape or ()
        if not isinstance(dim, int) and dim.value
    }
    if unknown := sorted(sizes.keys() - known):
        raise OnnxTrainError(
            f"the model has no dimension '{unknown[0]}'\n"
            f"  have  {', '.join(sorted(known)) or 'none with a name'}"
        )
    fix_sizes(model, sizes)


def _is_size(text: str) -> bool:
    return text.isdecimal() and int(text) < 2**63


def _inference(model: ir.Model) -> Planned:
    from onnxtrain.graph.prepare import prepare

    return Planned("inference", prepare(model))


def _training(original: ir.Model, loss: str, optimizer: str, precision: str) -> list[Planned]:
    """Step and update as a trainer with default settings runs them."""
    import onnx_ir as ir

    from onnxtrain.cli.fitting.losses import goal
    from onnxtrain.errors import LossError
    from onnxtrain.graph.prepare import prepare
    from onnxtrain.training.build import build_optimizer, build_training, working_copy
    from onnxtrain.training.precision import computed_in
    from onnxtrain.transforms.mode import TrainingForm
    from onnxtrain.transforms.training_graph import BUFFER_SUFFIX
    from onnxtrain.transforms.weights.parameters import decide
    from onnxtrain.transforms.weights.whole_numbers import unpack
    from onnxtrain.transforms.write_back import weight_names

    aim = goal(loss)
    if aim.is_function:
        raise LossError(
            f"'{loss}' is a torch function, which is no part of the graph\n"
            "  give a loss by name, or an onnxblock as module:name"
        )
    known = weight_names(original)
    working = working_copy(original)
    if not working.graph.outputs:
        raise LossError("the model has no output that a loss could take")
    outputs = [str(working.graph.outputs[0].name)]
    decisions = decide(working, "auto", outputs, known=known)
    trained = [d.name for d in decisions if d.trained]
    unpack(working, trained)
    built = build_training(
        working,
        loss=aim.loss,
        outputs=outputs,
        trained=trained,
        moving=[d.name for d in decisions if d.statistic],
        form=TrainingForm(batch_norm=True, dropout=True),
        split=False,
        compute=computed_in(working, trained, precision),
        fuse=True,
    )
    notes = () if built.fusion is None else tuple(built.fusion.report.lines())
    bound = {*built.parameters, *(f"{name}{BUFFER_SUFFIX}" for name in trained)}
    inputs = {v.name for v in built.models.training.graph.inputs}
    update = ir.from_proto(build_optimizer(optimizer, working, trained, 0.0, None))
    return [
        Planned("training step", prepare(built.models.training), frozenset(bound & inputs), notes),
        Planned(f"update ({optimizer})", prepare(update), updates=True),
    ]


def _print(item: Planned, provider: Provider, memory: bool, waiting: Waiting) -> None:
    from onnxtrain.cli.console import grouped, say
    from onnxtrain.cli.sizes import Sizes
    from onnxtrain.kernels.library import default_registry
    from onnxtrain.runtime.lifetimes import live_bytes
    from onnxtrain.runtime.lower import LowerOptions
    from onnxtrain.runtime.ready import planned
    from onnxtrain.transforms.recipe import Done, make_lean
    from onnxtrain.types import CUDA

    done, on_gpu = Done(0, 0), provider is CUDA
    if item.state:
        done = make_lean(item.model, on_gpu=on_gpu, compiled=on_gpu, waiting=waiting)
    made = planned(item.model, default_registry(), LowerOptions(provider), state=item.state)
    say(f"# {item.title} on {provider}", "bold")
    for note in item.notes:
        say(f"# {note}")
    if on_gpu and (item.state or item.updates):
        say(f"# {_recorded(item, made)}")
    if done.twice:
        say(f"# nodes of the forward pass that the backward pass computes again: {done.twice}")
    if done.encoded:
        say(f"# values that wait for the backward pass in fewer bits: {done.encoded}")
    if chains := sum(step.kernel.op == "Elementwise" for step in made.block.steps):
        say(f"# kernels are generated for {chains} chains of elementwise operators")
    sizes = Sizes(item.model, made)
    profile = None if sizes.unknown else live_bytes(made.block, sizes.of)
    if not memory:
        typer.echo(made.source(), nl=False)
    elif profile is not None:
        _print_profile(profile)
    if profile is not None:
        bytes_ = f"{grouped(_peak(profile))} bytes; bound: {grouped(sizes.bound)} bytes"
        say(f"# peak of what the step makes: {bytes_}")
    elif memory:
        say(
            f"the sizes of {len(sizes.unknown)} values are not known before the model runs, "
            f"first {sizes.unknown[0]}; give the dimensions of the inputs a size with --dim"
        )


def _recorded(item: Planned, made: Plan) -> str:
    """Whether training replays what was planned as a CUDA graph."""
    from onnxtrain.runtime.obstacle import obstacle
    from onnxtrain.training.optimizer import unrecordable

    reason = obstacle(made) or (unrecordable(item.model, made) if item.updates else None)
    if reason is not None:
        return f"not recorded as a CUDA graph: {reason}"
    return "recorded as a CUDA graph and replayed"


def _peak(profile: list[tuple[Step, int]]) -> int:
    return max((held for _, held in profile), default=0)


def _print_profile(profile: list[tuple[Step, int]]) -> None:
    from onnxtrain.cli.console import grouped, table

    peak = _peak(profile)
    rows = [
        (step.node, step.kernel.op, grouped(held), "peak" if held == peak else "")
        for step, held in profile
    ]
    table("", ("node", "operator", "bytes alive", ""), rows, right=("bytes alive",))
