"""Where output goes, and how tables and messages look."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 200
"""Columns of a table that goes to a file or another program, where no window sets the width."""


def console(*, stderr: bool = False) -> Console:
    """A console for the current stdout (or stderr)."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = PIPED_WIDTH
    return made


def say(text: str, style: str = "", *, stderr: bool = False) -> None:
    """Print text as it is: no wrapping, no markup."""
    from rich.text import Text

    console(stderr=stderr).print(Text(text, style=style), soft_wrap=True)


def fail(text: str) -> None:
    """Print an error: its first line in red, what follows as it is."""
    first, _, rest = text.partition("\n")
    say(f"error: {first}", "bold red", stderr=True)
    if rest:
        say(rest, stderr=True)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[str] = (),
) -> None:
    """Print a table; the columns in ``right`` are aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    console().print(made)


def grouped(number: int) -> str:
    """A whole number with thin groups of three digits: ``1,234,567``."""
    return f"{number:,}"
