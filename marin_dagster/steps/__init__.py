"""WHAT to build: steps, their identity, their graph. Pure data; no I/O and no Dagster."""

from marin_dagster.steps.graph import RunPlan, StepGraph, plan_run
from marin_dagster.steps.protocol import StepLike, is_mutable
from marin_dagster.steps.resources import (
    CpuConfig,
    GpuConfig,
    RemoteCallable,
    ResourceConfig,
    TpuConfig,
    remote,
    step_function,
    step_resources,
)
from marin_dagster.steps.spec import StepSpec

__all__ = [
    "CpuConfig",
    "GpuConfig",
    "RemoteCallable",
    "ResourceConfig",
    "RunPlan",
    "StepGraph",
    "StepLike",
    "StepSpec",
    "TpuConfig",
    "is_mutable",
    "plan_run",
    "remote",
    "step_function",
    "step_resources",
]
