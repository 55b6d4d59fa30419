"""Cuts JSON down to a size that suits Dagster's event log and a page."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_CHARS = 4096
"""Characters of all text and numbers together, roughly."""
MAX_TEXT = 500
"""Characters of one text."""
MAX_DEPTH = 20
"""Levels of nesting: Dagster and the page read JSON recursively."""


def bounded_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """The beginning of plain JSON; an ellipsis replaces each part that is left out.

    A text that is cut ends with an ellipsis; a list or object that is cut ends with the number of
    items left out.
    """
    shown: dict[str, Any] = _Budget(MAX_CHARS).fit(dict(value), 0)
    return shown


@dataclass
class _Budget:
    left: int

    def fit(self, value: Any, depth: int) -> Any:
        if isinstance(value, (dict, list)) and value and depth == MAX_DEPTH:
            return f"… {len(value)} items"
        if isinstance(value, dict):
            return self._object(value, depth)
        if isinstance(value, list):
            return self._list(value, depth)
        if isinstance(value, str):
            most = max(0, min(MAX_TEXT, self.left))
            self.left -= len(value)
            return value if len(value) <= most else value[:most] + "…"
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
