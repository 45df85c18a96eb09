"""The group of verbs: errors made on purpose become short messages, ``--debug`` shows traces."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from onnxtrain.cli.console import fail
from onnxtrain.cli.usage import UsageError, explained
from onnxtrain.errors import OnnxTrainError

DEBUG = "--debug"


class Verbs(TyperGroup):
    """Runs a verb and explains its failures."""

    debug = False
    words: tuple[str, ...] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``--debug`` at any place, since it is what one adds to a line that failed."""
        self.debug = DEBUG in args
        self.words = tuple(arg for arg in args if arg != DEBUG)
        return super().parse_args(ctx, list(self.words))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; its errors are printed without a trace.

        An ``OnnxTrainError`` exits with 1, a line that cannot be understood with 2.
        """
        try:
            return super().invoke(ctx)
        except UsageError as error:
            if error.ctx is ctx:
                raise
            fail(explained(error, self.words))
            raise typer.Exit(2) from None
        except OnnxTrainError as error:
            if self.debug:
                raise
            fail(str(error))
            raise typer.Exit(1) from None
