"""Lazy artifacts: steps that are addressed by name and version instead of a hash. No Dagster."""

from marin_dagster.lazy.artifact import Artifact, read_artifact, result_type_name, write_artifact
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
    "read_artifact",
    "result_type_name",
    "write_artifact",
]
