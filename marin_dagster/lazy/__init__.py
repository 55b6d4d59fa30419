"""Lazy artifacts: steps addressed by name and version instead of a hash. Imports no Dagster."""

from marin_dagster.lazy.artifact import Artifact, read_artifact, result_type_name, write_artifact
from marin_dagster.lazy.function_steps import OUT, apply
from marin_dagster.lazy.handles import ArtifactStep, load, lower, materialized_config
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
    "read_artifact",
    "result_type_name",
    "write_artifact",
]
