"""Lazy artifacts: steps that are addressed by name and version instead of a hash. No Dagster."""

from marin_dagster.lazy.artifact import Artifact, result_type_name
from marin_dagster.lazy.handles import OUT, ArtifactStep, StepContext, apply
from marin_dagster.lazy.lowering import load, lower

__all__ = [
    "OUT",
    "Artifact",
    "ArtifactStep",
    "StepContext",
    "apply",
    "load",
    "lower",
    "result_type_name",
]
