"""Short forms of lists, long texts and durations, for messages."""

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

MAX_CHARACTERS = 60
"""Characters that are shown of a value."""
_MAX_LINES = 20
_MAX_NAMES = 5
"""How many things one line names."""
_MAX_OF_VALUE = 80
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = _MAX_OF_VALUE


def limit_lines(lines: list[str]) -> list[str]:
    """The first 20 lines, and how many more there are."""
    more = len(lines) - _MAX_LINES
    return lines[:_MAX_LINES] + ([f"and {more} more"] if more > 0 else [])


def summarize(names: Iterable[str], separator: str = ", ") -> str:
    """The first 5 names in one line, and how many more there are."""
    named = list(names)
    more = f" and {len(named) - _MAX_NAMES} more" * (len(named) > _MAX_NAMES)
    return separator.join(named[:_MAX_NAMES]) + more


def shorten(text: str, start: int = 0) -> str:
    """At most 60 characters of a text from ``start`` on; an ellipsis marks each omission."""
    end = start + MAX_CHARACTERS
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def shown(value: Any) -> str:
    """At most 80 characters of a value's ``repr``, which may be huge or raise."""
    return _repr.repr(value)[:_MAX_OF_VALUE]


def shorten_middle(text: str) -> str:
    """At most 121 characters of a long name or path: its beginning and its end."""
    if len(text) <= 2 * MAX_CHARACTERS:
        return text
    return f"{text[:MAX_CHARACTERS]}…{text[-MAX_CHARACTERS:]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence, with a space before it, that names up to 3 similar names; empty without any."""
    close = difflib.get_close_matches(name, list(known), n=3)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def spoken(seconds: float) -> str:
    """A duration in words: ``7.5 s``, ``41 min``, ``3 h 20 min``."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def markdown_cell(text: str) -> str:
    """Text without characters that Markdown would read as cells, HTML or links."""
    return " ".join(re.sub(r"([\\|<\[`*_])", r"\\\1", text).split())
