"""What commands print: a result as JSON, tables, and text with styles where the terminal has them.

Results are dataclasses. Their JSON has the schema in ``schemas/<command>.json``.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

STYLES = {
    "run": "yellow",
    "running": "yellow",
    "elsewhere": "magenta",
    "cached": "green",
    "built": "green",
    "finished": "green",
    "failed": "red",
    "blocked": "red",
    "unknown": "red",
    "interrupted": "magenta",
    "error": "red",
}
"""The colours of states; others have none."""


def print_json(result: Any) -> None:
    """Print a result, one JSON document."""
    click.echo(json.dumps(dataclasses.asdict(result), indent=2, ensure_ascii=False))


def styled(state: str) -> str:
    """A state in its colour; plain when stdout is no terminal or ``NO_COLOR`` is set."""
    return click.style(state, fg=STYLES.get(state)) if has_colors() else state


def has_colors() -> bool:
    """Whether stdout is a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """A table without lines. The first column has the colour of its state."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        # The last column wraps; a name that is cut could not be copied.
        made.add_column(name, overflow="fold", no_wrap=number < len(columns) - 1)
    for first, *others in rows:
        made.add_row(Text(first, style=STYLES.get(first, "")), *map(Text, others))
    return made


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; in full width, however long, when stdout is no terminal."""
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=100_000, color_system=None)
    with console.capture() as captured:
        console.print(table(columns, rows))
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), color=None)


def counted(count: int, what: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count} {what}{'s' * (count != 1)}"


def file_size(count: int) -> str:
    """Bytes as people read them: ``3.2 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def short_time(text: str | None) -> str:
    """A time in ISO 8601 without its time zone; empty for None."""
    return (text or "")[:19].replace("T", " ")
