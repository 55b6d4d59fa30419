"""A code location with Marin's own tokenization graph: every source that Marin knows."""

import sys
import types
from typing import Any

from marin_dagster import build_definitions


class _Missing(types.ModuleType):
    """Stands in for a compiled package that Marin's modules import and its graphs never call."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


try:
    import dupekit  # noqa: F401
except ImportError:
    sys.modules["dupekit"] = _Missing("dupekit")

from marin.datakit.sources import all_sources  # noqa: E402
from marin.processing.tokenize.attributes import tokenize_attributes_step  # noqa: E402

steps = [
    tokenize_attributes_step(
        name=f"tokenized/{name}",
        train_normalize=source.normalized,
        tokenizer="marin-community/marin-tokenizer",
    )
    for name, source in all_sources().items()
]

defs = build_definitions(steps)
