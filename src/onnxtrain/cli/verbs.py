"""The group of verbs: errors made on purpose become short messages, ``--debug`` shows traces."""

from __future__ import annotations

import io
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from onnxtrain.cli.console import fail
from onnxtrain.cli.fitting.ranks import told_rank
from onnxtrain.cli.usage import UsageError, explained, unknown_verb
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
        try:
            return super().parse_args(ctx, list(self.words))
        except UsageError as error:
            if type(error).__name__ != "NoSuchOption":
                raise
            fail(explained(error, self.words))
            raise typer.Exit(2) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; its errors are printed without a trace.

        An ``OnnxTrainError`` exits with 1, a line that cannot be understood with 2. What a function
        of the user raises is told with its place there.
        """
        _print_anything()
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except UsageError as error:
            if told_rank() == 0:
                fail(
                    unknown_verb(error, self.words, self.list_commands(ctx))
                    if error.ctx is ctx
                    else explained(error, self.words)
                )
            raise typer.Exit(2) from None
        except OnnxTrainError as error:
            if self.debug:
                raise
            _tell(str(error))
            raise typer.Exit(1) from None
        except MemoryError as error:
            if self.debug:
                raise
            _tell(f"there is not enough memory: {error}\n  make sizes smaller")
            raise typer.Exit(1) from None
        except Exception as error:
            from onnxtrain.data.calls import place_of

            place = place_of(error)
            if self.debug or place is None:
                raise
            kind = type(error).__name__
            _tell(f"{kind}: {error}\n  {place}\n  add {DEBUG} for the whole trace")
            raise typer.Exit(1) from None


def _print_anything() -> None:
    """Let streams print the number of a character that they cannot show, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _tell(text: str) -> None:
    """Print an error; other processes than the first one, which tells more, give a line."""
    rank = told_rank()
    fail(text if rank == 0 else f"process {rank}: {text.splitlines()[0]}")
