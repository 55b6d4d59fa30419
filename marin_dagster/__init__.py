"""Marin's step graphs as Dagster assets.

``build_definitions(steps)`` turns a graph of :class:`StepSpec` into a Dagster code location whose
runs build only what the status-file cache does not have.

Names are loaded when they are first used, so that ``marin_dagster.steps`` and
``marin_dagster.cache`` work where Dagster is not installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marin_dagster.assets import build_marin_assets
    from marin_dagster.cache import ArtifactRecord, StepCache
    from marin_dagster.definitions import build_definitions
    from marin_dagster.errors import MarinDagsterError, MarinDagsterWarning
    from marin_dagster.executor import build_marin_executor, marin_executor
    from marin_dagster.io_manager import MarinIOManager, StepOutput
    from marin_dagster.steps import (
        RemoteCallable,
        ResourceConfig,
        StepGraph,
        StepLike,
        StepSpec,
        remote,
    )
    from marin_dagster.translator import DagsterMarinTranslator

_HOMES = {
    "ArtifactRecord": "cache",
    "DagsterMarinTranslator": "translator",
    "MarinDagsterError": "errors",
    "MarinDagsterWarning": "errors",
    "MarinIOManager": "io_manager",
    "RemoteCallable": "steps",
    "ResourceConfig": "steps",
    "StepCache": "cache",
    "StepGraph": "steps",
    "StepLike": "steps",
    "StepOutput": "io_manager",
    "StepSpec": "steps",
    "build_definitions": "definitions",
    "build_marin_assets": "assets",
    "build_marin_executor": "executor",
    "marin_executor": "executor",
    "remote": "steps",
}

__all__ = [
    "ArtifactRecord",
    "DagsterMarinTranslator",
    "MarinDagsterError",
    "MarinDagsterWarning",
    "MarinIOManager",
    "RemoteCallable",
    "ResourceConfig",
    "StepCache",
    "StepGraph",
    "StepLike",
    "StepOutput",
    "StepSpec",
    "build_definitions",
    "build_marin_assets",
    "build_marin_executor",
    "marin_executor",
    "remote",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
