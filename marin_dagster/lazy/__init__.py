"""Lazy artifacts: steps that are addressed by name and version instead of a hash. No Dagster."""

from marin_dagster.lazy.artifact import Artifact, result_type_name
from marin_dagster.lazy.handles import OUT, ArtifactStep, apply, materialized_config
from marin_dagster.lazy.lowering import load, lower
from marin_dagster.lazy.step_context import StepContext

__all__ = [
    "OUT",
    "Artifact",
    "ArtifactStep",
    "StepContext",
    "apply",
    "load",
    "lower",
    "materialized_config",
    "result_type_name",
]
