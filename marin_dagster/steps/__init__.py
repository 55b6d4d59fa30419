"""WHAT to build: steps, their identity and their graph. Pure data; no I/O and no Dagster."""

from marin_dagster.steps.devices import CpuConfig, GpuConfig, TpuConfig
from marin_dagster.steps.graph import RunPlan, StepGraph, plan_run
from marin_dagster.steps.protocol import StepLike, is_mutable
from marin_dagster.steps.remote import RemoteCallable, remote, step_function, step_resources
from marin_dagster.steps.resources import ResourceConfig
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
