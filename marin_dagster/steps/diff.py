"""How one JSON value differs from another, field by field, in short lines for people."""

from collections.abc import Iterable, Iterator
from typing import Any

_MOST_LINES = 20
_MOST_NAMED = 5
"""How many things one line names."""
_LONGEST = 60
"""Characters that are shown of a value."""
_CONTEXT = 20
"""Of them, how many stand before the first difference of two long values."""


def changes(old: Any, new: Any) -> list[str]:
    """A line for each field that differs, ``a.b: 1 -> 2``.

    Empty when both are the same; numbers are when they look the same, so that NaN is itself and 1
    is not 1.0. Long values are cut down to where they differ, long names of fields in the middle.
    """
    return list(_changes(old, new, ""))


def limit_lines(lines: list[str]) -> list[str]:
    """The first 20 lines, and how many more there are."""
    more = len(lines) - _MOST_LINES
    return lines[:_MOST_LINES] + ([f"and {more} more"] if more > 0 else [])


def summarize(names: Iterable[str], separator: str = ", ") -> str:
    """The first 5 names in one line, and how many more there are."""
    named = list(names)
    more = f" and {len(named) - _MOST_NAMED} more" * (len(named) > _MOST_NAMED)
    return separator.join(named[:_MOST_NAMED]) + more


def shorten(text: str, start: int = 0) -> str:
    """At most 60 characters of a text; an ellipsis stands for what is left out."""
    end = start + _LONGEST
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def shorten_middle(path: str) -> str:
    """At most 121 characters of a long name: its beginning and its end, which both tell."""
    return path if len(path) <= 2 * _LONGEST else f"{path[:_LONGEST]}…{path[-_LONGEST:]}"


def _changes(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            name = key if key and key.isprintable() else repr(key)
            at = shorten_middle(f"{path}.{name}" if path else name)
            if key not in old:
                yield f"{at}: added {shorten(repr(new[key]))}"
            elif key not in new:
                yield f"{at}: removed {shorten(repr(old[key]))}"
            else:
                yield from _changes(old[key], new[key], at)
        return
    at = path or "the whole"
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _changes(before, after, shorten_middle(f"{path}[{index}]"))
        return
    before, after = repr(old), repr(new)
    if before == after:
        return
    if max(len(before), len(after)) <= _LONGEST:
        yield f"{at}: {before} -> {after}"
    elif isinstance(old, list) and isinstance(new, list):
        yield f"{at}: {len(old)} items -> {len(new)} items"
    else:
        pairs = enumerate(zip(before, after, strict=False))
        same = next((index for index, (a, b) in pairs if a != b), min(len(before), len(after)))
        start = max(0, same - _CONTEXT)
        yield f"{at}: {shorten(before, start)} -> {shorten(after, start)}"
