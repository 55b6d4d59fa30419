"""What each kind of runner can be told, and the rules that send steps to runners.

Plain data: the same models describe the executor's config and build the runners.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator


class RunnerSettings(BaseModel):
    """Base of every runner's settings."""

    model_config = ConfigDict(extra="forbid")


class ProcessSettings(RunnerSettings):
    """A process on this machine for each step, forked from a small one that is kept warm."""

    limit_memory: bool = Field(
        default=True,
        description="Let allocations beyond the step's ram fail, by RLIMIT_DATA.",
    )
    gpus: int | None = Field(
        default=None,
        ge=0,
        description="GPUs of this machine that steps may use, out of CUDA_VISIBLE_DEVICES where "
        "that is set; all of them when not given.",
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="Environment of every step's process."
    )


class FraySettings(RunnerSettings):
    """Fray's jobs, on Iris when an address is given (Python 3.12 and marin-fray)."""

    address: str | None = Field(
        default=None,
        description="URL of the Iris controller; the caller's current Fray client when not given.",
    )
    workspace: str | None = Field(
        default=None,
        description="A folder with a pyproject.toml that workers install, marin_dagster among its "
        "dependencies; with an address only. Without, workers must have what a step needs.",
    )
    max_retries_preemption: int = Field(
        default=0,
        ge=0,
        description="How often the engine itself starts a preempted job again.",
    )
    shared_disk: bool = Field(
        default=False,
        description="Whether the workers see this machine's disk, so that outputs may lie on it.",
    )
    env: dict[str, str] = Field(default_factory=dict, description="Environment of every job.")


_OPTIONS_OF_THE_RUNNER = {
    "clusters": "jobs are submitted to the cluster of SLURM_CONF, and asked of that cluster",
    "cluster_constraint": "jobs are submitted to the cluster of SLURM_CONF",
    "array": "a step is one job",
    "job_name": "a job is found again by its name",
    "output": "a job's log is in a folder of its own",
    "error": "a job's log is in a folder of its own",
    "wait": "the runner waits for jobs itself",
    "quiet": "sbatch must print the job's id",
    "test_only": "nothing would run",
}
"""Parameters of sbatch that a runner cannot work with, each with the reason."""


class SlurmSettings(RunnerSettings):
    """Slurm batch jobs, through submitit."""

    folder: str = Field(
        description="A folder that this machine and the nodes share, for the jobs' scripts and "
        "logs.",
    )
    partition: str | None = Field(default=None, description="Partition to submit to.")
    account: str | None = Field(default=None, description="Account to charge.")
    time_min: int | None = Field(
        default=None, ge=1, description="Time limit of each job, in minutes."
    )
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="More sbatch parameters, such as {qos: high}; they override what is derived "
        "from the step's resources. Not clusters, array, job_name, output, error and wait.",
    )
    setup: list[str] = Field(
        default_factory=list, description="Shell lines to run on the node before the step."
    )
    shared_disk: bool = Field(
        default=True,
        description="Whether the nodes see this machine's disk, so that outputs may lie on it.",
    )
    env: dict[str, str] = Field(default_factory=dict, description="Environment of every job.")

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
    """One rule: steps that fit every condition that is given go to the runner."""

    runner: str = Field(description="Name of a runner.")
    device: str | None = Field(
        default=None,
        description="Steps that ask for this kind of device: cpu, gpu or tpu.",
    )
    min_cpu: float | None = Field(default=None, description="Steps that ask for so many cores.")
    min_ram: str | None = Field(
        default=None, description="Steps that ask for so much memory, such as 64g."
    )
    step: str | None = Field(
        default=None, description="Steps whose name matches this pattern, such as train/*."
    )


class StepOverride(RunnerSettings):
    """What a run says about one step."""

    runner: str | None = Field(default=None, description="Name of the runner to take.")
    cpu: float | None = Field(default=None, description="Cores instead of the step's own.")
    ram: str | None = Field(default=None, description="Memory instead of the step's own.")
    disk: str | None = Field(default=None, description="Scratch disk instead of the step's own.")
    env: dict[str, str] = Field(default_factory=dict, description="More environment.")


class RoutingConfig(RunnerSettings):
    """Which runners there are, and which steps go where."""

    runners: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Each runner's name, and its settings under its type: ``{"cluster": {"slurm": {…}}}``."""
    routes: list[Route] = Field(default_factory=list)
    """Tried in order; the first that fits counts."""
    default: str = "inline"
    """The runner for steps without resources."""
    default_with_resources: str | None = None
    """The runner for steps with resources. When None: the only configured one, or ``process``
    when there is none."""
    steps: Mapping[str, StepOverride] = Field(default_factory=dict)
    """What this run says about single steps: by name, name with hash, or asset key."""
