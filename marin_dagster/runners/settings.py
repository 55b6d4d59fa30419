"""The settings of each runner type, and the rules that route steps to runners.

These models describe the executor's config, and build the runners.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator


class RunnerSettings(BaseModel):
    """Base class of every runner's settings."""

    model_config = ConfigDict(extra="forbid")


class ProcessSettings(RunnerSettings):
    """A process on this machine for each step, forked from a small warm process."""

    limit_memory: bool = Field(
        default=True,
        description="Limit each process of the step to the step's ram (RLIMIT_DATA): allocations "
        "beyond it fail.",
    )
    gpus: int | None = Field(
        default=None,
        ge=0,
        description="How many of this machine's GPUs steps may use, of those in "
        "CUDA_VISIBLE_DEVICES if that is set. Default: all.",
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables for every step's process."
    )


class FraySettings(RunnerSettings):
    """Fray jobs, on Iris if an address is set. Needs Python 3.12 and marin-fray."""

    address: str | None = Field(
        default=None,
        description="URL of the Iris controller. Default: the current Fray client.",
    )
    workspace: str | None = Field(
        default=None,
        description="Folder with a pyproject.toml that workers install, with marin_dagster among "
        "its dependencies. Only with an address. Default: workers install nothing.",
    )
    max_retries_preemption: int = Field(
        default=0,
        ge=0,
        description="How often the engine may restart a preempted job.",
    )
    shared_disk: bool = Field(
        default=False,
        description="Workers share this machine's disk, so outputs may be on it.",
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables for every job."
    )


_OPTIONS_OF_THE_RUNNER = {
    "clusters": "jobs are submitted to the cluster of SLURM_CONF, and looked up there",
    "cluster_constraint": "jobs are submitted to the cluster of SLURM_CONF",
    "array": "a step is one job",
    "job_name": "a job is found again by its name",
    "output": "a job's log is in the job's folder",
    "error": "a job's log is in the job's folder",
    "wait": "the runner waits for jobs itself",
    "quiet": "sbatch must print the job's id",
    "test_only": "no job would run",
}
"""Parameters of sbatch that the runner refuses, with the reason."""


class SlurmSettings(RunnerSettings):
    """Slurm batch jobs, through submitit."""

    folder: str = Field(
        description="Folder that this machine and the nodes share, for the jobs' scripts and logs.",
    )
    partition: str | None = Field(default=None, description="Partition to submit to.")
    account: str | None = Field(default=None, description="Account to charge jobs to.")
    time_min: int | None = Field(
        default=None, ge=1, description="Time limit of each job, in minutes."
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="More sbatch parameters, such as {qos: high}. They override those derived from "
        "the step's resources. Refused: clusters, array, job_name, output, error and wait.",
    )
    setup: list[str] = Field(
        default_factory=list, description="Shell commands to run on the node before the step."
    )
    shared_disk: bool = Field(
        default=True,
        description="Nodes share this machine's disk, so outputs may be on it.",
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Environment variables for every job."
    )

    @field_validator("parameters")
    @classmethod
    def _refuse_options_of_the_runner(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        further = parameters.get("additional_parameters")
        for key in (*parameters, *(further if isinstance(further, dict) else ())):
            reason = _OPTIONS_OF_THE_RUNNER.get(key.replace("-", "_"))
            if reason is not None:
                raise ValueError(f"leave out {key}: {reason}")
        return parameters


class Route(RunnerSettings):
    """A rule: steps that match all its conditions go to its runner."""

    runner: str = Field(description="Name of a runner.")
    device: str | None = Field(
        default=None,
        description="Match steps that request this kind of device: cpu, gpu or tpu.",
    )
    min_cpu: float | None = Field(
        default=None, description="Match steps that request at least this many cores."
    )
    min_ram: str | None = Field(
        default=None, description="Match steps that request at least this much memory, such as 64g."
    )
    step: str | None = Field(
        default=None, description="Match steps whose name has this pattern, such as train/*."
    )


class StepOverride(RunnerSettings):
    """One run's settings for one step."""

    runner: str | None = Field(default=None, description="Name of the runner to use.")
    cpu: float | None = Field(default=None, description="Number of cores; overrides the step's.")
    ram: str | None = Field(default=None, description="Memory, such as 64g; overrides the step's.")
    disk: str | None = Field(
        default=None, description="Scratch disk, such as 100g; overrides the step's."
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Additional environment variables."
    )


class RoutingConfig(RunnerSettings):
    """The runners of a run, and the rules that route steps to them."""

    runners: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Each runner's type and settings, by name: ``{"cluster": {"slurm": {…}}}``."""
    routes: list[Route] = Field(default_factory=list)
    """Checked in order: first match wins."""
    default: str = "inline"
    """The runner for steps without resources."""
    default_with_resources: str | None = None
    """The runner for steps with resources. If None: the only configured runner, or ``process`` if
    none is configured."""
    steps: Mapping[str, StepOverride] = Field(default_factory=dict)
    """This run's settings for single steps, by name, name with hash, or asset key."""
