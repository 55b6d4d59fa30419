"""Marin's step graphs as Dagster assets.

``build_definitions(steps)`` turns a graph of :class:`StepSpec` into a Dagster code location whose
runs build only what the status-file cache does not have.

Names are loaded when they are first used, so that ``marin_dagster.steps`` and
``marin_dagster.cache`` work where Dagster is not installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "assets.build": ["build_marin_assets"],
    "assets.checks": ["build_marin_checks"],
    "assets.io_manager": ["MarinIOManager"],
    "assets.marin_graph": ["MarinGraph"],
    "assets.output_loader": ["StepOutput"],
    "assets.translator": ["DagsterMarinTranslator"],
    "automation.cache_sensor": ["build_marin_cache_sensor"],
    "automation.schedule": ["build_marin_schedule"],
    "cache": ["ArtifactRecord", "StepCache"],
    "definitions": ["build_definitions"],
    "errors": ["MarinDagsterError", "MarinDagsterWarning", "StepsFailedError"],
    "executor": ["build_marin_executor", "marin_executor"],
    "lazy": [
        "OUT",
        "Artifact",
        "ArtifactStep",
        "StepContext",
        "apply",
        "lower",
        "materialized_config",
        "read_artifact",
        "write_artifact",
    ],
    "step_runner": ["StepRunner", "resolve", "run"],
    "steps": ["RemoteCallable", "ResourceConfig", "StepGraph", "StepLike", "StepSpec", "remote"],
    "lazy.build_context": ["BuildContext", "VersionCodex", "build_context"],
}
"""The public names by the module that defines them."""

_HOMES = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOMES)

# Type checkers read imports only; a test compares these with the names above.
if TYPE_CHECKING:
    from marin_dagster.assets.build import build_marin_assets as build_marin_assets
    from marin_dagster.assets.checks import build_marin_checks as build_marin_checks
    from marin_dagster.assets.io_manager import MarinIOManager as MarinIOManager
    from marin_dagster.assets.marin_graph import MarinGraph as MarinGraph
    from marin_dagster.assets.output_loader import StepOutput as StepOutput
    from marin_dagster.assets.translator import DagsterMarinTranslator as DagsterMarinTranslator
    from marin_dagster.automation.cache_sensor import (
        build_marin_cache_sensor as build_marin_cache_sensor,
    )
    from marin_dagster.automation.schedule import build_marin_schedule as build_marin_schedule
    from marin_dagster.cache import ArtifactRecord as ArtifactRecord
    from marin_dagster.cache import StepCache as StepCache
    from marin_dagster.definitions import build_definitions as build_definitions
    from marin_dagster.errors import MarinDagsterError as MarinDagsterError
    from marin_dagster.errors import MarinDagsterWarning as MarinDagsterWarning
    from marin_dagster.errors import StepsFailedError as StepsFailedError
    from marin_dagster.executor import build_marin_executor as build_marin_executor
    from marin_dagster.executor import marin_executor as marin_executor
    from marin_dagster.lazy import OUT as OUT
    from marin_dagster.lazy import Artifact as Artifact
    from marin_dagster.lazy import ArtifactStep as ArtifactStep
    from marin_dagster.lazy import StepContext as StepContext
    from marin_dagster.lazy import apply as apply
    from marin_dagster.lazy import lower as lower
    from marin_dagster.lazy import materialized_config as materialized_config
    from marin_dagster.lazy import read_artifact as read_artifact
    from marin_dagster.lazy import write_artifact as write_artifact
    from marin_dagster.lazy.build_context import BuildContext as BuildContext
    from marin_dagster.lazy.build_context import VersionCodex as VersionCodex
    from marin_dagster.lazy.build_context import build_context as build_context
    from marin_dagster.step_runner import StepRunner as StepRunner
    from marin_dagster.step_runner import resolve as resolve
    from marin_dagster.step_runner import run as run
    from marin_dagster.steps import RemoteCallable as RemoteCallable
    from marin_dagster.steps import ResourceConfig as ResourceConfig
    from marin_dagster.steps import StepGraph as StepGraph
    from marin_dagster.steps import StepLike as StepLike
    from marin_dagster.steps import StepSpec as StepSpec
    from marin_dagster.steps import remote as remote


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
