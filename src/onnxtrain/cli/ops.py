"""``onnxtrain ops``: the operators that can be run and differentiated, and the story of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnxtrain.errors import OnnxTrainError

if TYPE_CHECKING:
    from onnxtrain.cli.coverage import Coverage


def ops(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="One operator, such as Softmax or com.microsoft::Gelu."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with every registered type combination.")
    ] = False,
) -> None:
    """List operators, or tell all about one.

    Shows where each runs and whether it has a gradient; for one operator also the schema, the
    kernels with their types, and the place of each in the source.
    """
    import json

    from onnxtrain.cli.coverage import coverage

    rows = coverage() if name is None else _find(coverage(), name)
    if as_json:
        typer.echo(json.dumps([row.as_json() for row in rows], indent=1))
    elif name is None:
        _list(rows)
    else:
        for row in rows:
            _story(row)


def _find(rows: list[Coverage], name: str) -> list[Coverage]:
    """The operators that go by a name, with or without the domain, in any case.

    Raises:
        OnnxTrainError: if there is none; the message has the names that look alike.
    """
    import difflib

    wanted = name.lower()
    found = [row for row in rows if wanted in (row.op.lower(), row.name.lower())]
    if found:
        return found
    known = {row.op.lower(): row.op for row in rows}
    close = [known[text] for text in difflib.get_close_matches(wanted, known)]
    raise OnnxTrainError(
        f"there is no operator '{name}'\n"
        + (f"  did you mean {', '.join(close)}?" if close else "  onnxtrain ops lists them all")
    )


def _list(rows: list[Coverage]) -> None:
    from onnxtrain.cli.console import table
    from onnxtrain.types import CPU, CUDA

    yes = {True: "yes", False: "-"}
    table(
        "",
        ("operator", "CPU", "CUDA", "gradient"),
        [(r.name, yes[r.runs_on(CPU)], yes[r.runs_on(CUDA)], r.gradient or "-") for r in rows],
    )
    running = [row for row in rows if row.kernels]
    rules = [row for row in rows if row.gradient == "rule"]
    zeros = [row for row in rows if row.gradient == "zero"]
    typer.echo(
        f"{len(rows)} operators: {len(running)} run, {len(rules)} have a gradient rule, "
        f"{len(zeros)} are constant almost everywhere"
    )


def _story(row: Coverage) -> None:
    from onnxtrain.cli.console import say
    from onnxtrain.cli.coverage import versions

    say(row.name, "bold")
    schema = _schema(row)
    if schema is not None:
        say(_signature(schema))
        for line in (*_types(schema), *_attributes(schema)):
            say(f"  {line}")
    say("kernels", "bold")
    for kernel in row.kernels:
        say(f"  {kernel.describe()}")
    if not row.kernels:
        say("  none")
    say("gradient", "bold")
    for rule in row.rules:
        place = "zero, declared" if rule.fn is None else f"gradients/{rule.place}"
        say(f"  {versions(rule)} {place}")
    if not row.rules:
        say("  none")


def _schema(row: Coverage) -> Any:
    """The newest schema of an operator, or None."""
    import onnx

    from onnxtrain.graph import schemas

    return schemas.get(row.domain, row.op, onnx.defs.onnx_opset_version() if not row.domain else 1)


def _signature(schema: Any) -> str:
    sides = [
        ", ".join(f"{p.name}{_MARKS.get(p.option.name, '')}: {p.type_str}" for p in side)
        for side in (schema.inputs, schema.outputs)
    ]
    return f"  since {schema.since_version}: {sides[0]} -> {sides[1]}"


_MARKS = {"Optional": "?", "Variadic": "*"}


def _types(schema: Any) -> list[str]:
    return [
        f"{t.type_param_str}: {', '.join(sorted(t.allowed_type_strs))}"
        for t in schema.type_constraints
    ]


def _attributes(schema: Any) -> list[str]:
    import onnx

    lines = []
    for name, attribute in sorted(schema.attributes.items()):
        text = f"{name}: {attribute.type.name.lower()}"
        if attribute.default_value.name:
            text += f" = {onnx.helper.get_attribute_value(attribute.default_value)!r}"
        lines.append(text + (" (required)" if attribute.required else ""))
    return lines
