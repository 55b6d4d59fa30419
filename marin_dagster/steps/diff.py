"""How two JSON values differ, field by field, in short lines for people."""

from collections.abc import Iterator
from typing import Any

from marin_dagster.steps.text import MAX_CHARACTERS, shorten, shorten_middle

_CONTEXT = 20
"""Characters of two long values that are shown before their first difference."""


def changes(old: Any, new: Any) -> list[str]:
    """A line for each field that differs, ``a.b: 1 -> 2``.

    Empty when both are the same. Numbers are compared by their text: NaN equals NaN, and 1 is not
    1.0. Long values are shortened to where they differ, long field names in the middle.
    """
    return list(_changes(old, new, ""))


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
    if max(len(before), len(after)) <= MAX_CHARACTERS:
        yield f"{at}: {before} -> {after}"
    elif isinstance(old, list) and isinstance(new, list):
        yield f"{at}: {len(old)} items -> {len(new)} items"
    else:
        pairs = enumerate(zip(before, after, strict=False))
        same = next((index for index, (a, b) in pairs if a != b), min(len(before), len(after)))
        start = max(0, same - _CONTEXT)
        yield f"{at}: {shorten(before, start)} -> {shorten(after, start)}"
