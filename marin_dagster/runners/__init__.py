"""WHERE a step's function runs: in this thread, or as a job of an engine. Imports no Dagster.

``routing`` chooses a runner, ``driver`` takes an attempt through a job, ``base`` is the protocol.
Engines (``process``, ``slurm``, ``fray``) are imported when the first step needs them.
"""

from marin_dagster.runners.base import (
    Job,
    JobState,
    JobStatus,
    Request,
    Runner,
    describe_exit,
)
from marin_dagster.runners.driver import DriverCallbacks, finish, reattach, submit
from marin_dagster.runners.inline import run_inline
from marin_dagster.runners.job_file import JobFile, delete_job_file, read_job_file
from marin_dagster.runners.output_reads import OutputRead, ReadScope, noting_reads, take_reads
from marin_dagster.runners.payload import StepCall, pack, run_packed
from marin_dagster.runners.routing import (
    INLINE,
    INLINE_PLACEMENT,
    Placement,
    Routing,
    RunnerType,
    runner_types,
)
from marin_dagster.runners.settings import (
    FraySettings,
    ProcessSettings,
    Route,
    RoutingConfig,
    RunnerSettings,
    SlurmSettings,
    StepOverride,
)

__all__ = [
    "INLINE",
    "INLINE_PLACEMENT",
    "DriverCallbacks",
    "FraySettings",
    "Job",
    "JobFile",
    "JobState",
    "JobStatus",
    "OutputRead",
    "Placement",
    "ProcessSettings",
    "ReadScope",
    "Request",
    "Route",
    "Routing",
    "RoutingConfig",
    "Runner",
    "RunnerSettings",
    "RunnerType",
    "SlurmSettings",
    "StepCall",
    "StepOverride",
    "delete_job_file",
    "describe_exit",
    "finish",
    "noting_reads",
    "pack",
    "read_job_file",
    "reattach",
    "run_inline",
    "run_packed",
    "runner_types",
    "submit",
    "take_reads",
]
