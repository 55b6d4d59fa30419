"""JSON cut down to what Dagster's event log and a page can bear."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_CHARS = 4096
"""Of all text and numbers together, roughly."""
MAX_TEXT = 500
"""Characters of one text."""
MAX_DEPTH = 20
"""Dagster and the page go into JSON recursively."""


def bounded_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """The beginning of plain JSON; an ellipsis stands for each part that is left out.

    A text that is cut ends with it, a list or object that is cut with how many items more it has.
    """
    shown: dict[str, Any] = _Room(MAX_CHARS).fit(dict(value), 0)
    return shown


@dataclass
class _Room:
    left: int

    def fit(self, value: Any, depth: int) -> Any:
        if isinstance(value, (dict, list)) and value and depth == MAX_DEPTH:
            return f"… {len(value)} items"
        if isinstance(value, dict):
            return self._object(value, depth)
        if isinstance(value, list):
            return self._list(value, depth)
        if isinstance(value, str):
            room = max(0, min(MAX_TEXT, self.left))
            self.left -= len(value)
            return value if len(value) <= room else value[:room] + "…"
        self.left -= len(str(value))
        return value

    def _object(self, value: dict[str, Any], depth: int) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for index, (key, item) in enumerate(value.items()):
            if self.left <= len(key):
                self.left = 0
                return shown | {"…": f"{len(value) - index} more"}
            self.left -= len(key)
            shown[key] = self.fit(item, depth + 1)
        return shown

    def _list(self, value: list[Any], depth: int) -> list[Any]:
        shown: list[Any] = []
        for index, item in enumerate(value):
            if self.left <= 0:
                return [*shown, f"… {len(value) - index} more"]
            self.left -= 1
            shown.append(self.fit(item, depth + 1))
        return shown
