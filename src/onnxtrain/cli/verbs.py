"""The group of verbs: errors made on purpose become short messages, ``--debug`` shows traces."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from onnxtrain.cli.console import fail
from onnxtrain.errors import OnnxTrainError

DEBUG = "--debug"


class Verbs(TyperGroup):
    """Runs a verb and explains its failures."""

    debug = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``--debug`` at any place, since it is what one adds to a line that failed."""
        self.debug = DEBUG in args
        return super().parse_args(ctx, [arg for arg in args if arg != DEBUG])

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; an ``OnnxTrainError`` is printed without a trace and exits with 1."""
        try:
            return super().invoke(ctx)
        except OnnxTrainError as error:
            if self.debug:
                raise
            fail(str(error))
            raise typer.Exit(1) from None
