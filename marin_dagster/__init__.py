"""Marin's step graphs as Dagster assets.

``build_definitions(steps)`` turns a graph of :class:`StepSpec` into a Dagster code location whose
runs build only what the status-file cache does not have.

Names are loaded when they are first used, so that ``marin_dagster.steps`` and
``marin_dagster.cache`` work where Dagster is not installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from marin_dagster.assets.build import build_marin_assets
    from marin_dagster.assets.checks import build_marin_checks
    from marin_dagster.assets.io_manager import MarinIOManager, StepOutput
    from marin_dagster.assets.translator import DagsterMarinTranslator
    from marin_dagster.automation.cache_sensor import build_marin_cache_sensor
    from marin_dagster.automation.schedule import build_marin_schedule
    from marin_dagster.cache import ArtifactRecord, StepCache
    from marin_dagster.definitions import build_definitions
    from marin_dagster.errors import MarinDagsterError, MarinDagsterWarning, StepsFailedError
    from marin_dagster.executor import build_marin_executor, marin_executor
    from marin_dagster.lazy import (
        OUT,
        Artifact,
        ArtifactStep,
        StepContext,
        apply,
        lower,
        materialized_config,
        read_artifact,
        write_artifact,
    )
    from marin_dagster.lazy.build_context import BuildContext, VersionCodex, build_context
    from marin_dagster.step_runner import StepRunner, resolve, run
    from marin_dagster.steps import (
        RemoteCallable,
        ResourceConfig,
        StepGraph,
        StepLike,
        StepSpec,
        remote,
    )

_HOMES = {
    "OUT": "lazy",
    "Artifact": "lazy",
    "ArtifactRecord": "cache",
    "ArtifactStep": "lazy",
    "BuildContext": "lazy.build_context",
    "DagsterMarinTranslator": "assets.translator",
    "MarinDagsterError": "errors",
    "MarinDagsterWarning": "errors",
    "MarinIOManager": "assets.io_manager",
    "RemoteCallable": "steps",
    "ResourceConfig": "steps",
    "StepCache": "cache",
    "StepContext": "lazy",
    "StepGraph": "steps",
    "StepLike": "steps",
    "StepOutput": "assets.io_manager",
    "StepRunner": "step_runner",
    "StepSpec": "steps",
    "StepsFailedError": "errors",
    "VersionCodex": "lazy.build_context",
    "apply": "lazy",
    "build_context": "lazy.build_context",
    "build_definitions": "definitions",
    "build_marin_assets": "assets.build",
    "build_marin_cache_sensor": "automation.cache_sensor",
    "build_marin_checks": "assets.checks",
    "build_marin_executor": "executor",
    "build_marin_schedule": "automation.schedule",
    "lower": "lazy",
    "marin_executor": "executor",
    "materialized_config": "lazy",
    "read_artifact": "lazy",
    "remote": "steps",
    "resolve": "step_runner",
    "run": "step_runner",
    "write_artifact": "lazy",
}

__all__ = [
    "OUT",
    "Artifact",
    "ArtifactRecord",
    "ArtifactStep",
    "BuildContext",
    "DagsterMarinTranslator",
    "MarinDagsterError",
    "MarinDagsterWarning",
    "MarinIOManager",
    "RemoteCallable",
    "ResourceConfig",
    "StepCache",
    "StepContext",
    "StepGraph",
    "StepLike",
    "StepOutput",
    "StepRunner",
    "StepSpec",
    "StepsFailedError",
    "VersionCodex",
    "apply",
    "build_context",
    "build_definitions",
    "build_marin_assets",
    "build_marin_cache_sensor",
    "build_marin_checks",
    "build_marin_executor",
    "build_marin_schedule",
    "lower",
    "marin_executor",
    "materialized_config",
    "read_artifact",
    "remote",
    "resolve",
    "run",
    "write_artifact",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
