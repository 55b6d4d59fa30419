"""A chain of 20 steps as a job that can be executed again; a file lists the functions that ran."""

import os
from pathlib import Path

import dagster as dg
from dagster._core.definitions.reconstruct import ReconstructableJob

from helpers.runs import JOB
from marin_dagster import StepSpec, build_definitions

CALLS = "CHAIN_JOB_CALLS"
"""Environment variable: the file in which functions note their step's name."""
FAILING = "CHAIN_JOB_FAILING"
"""Environment variable: name of the step that fails."""
LENGTH = 20


def chain() -> list[StepSpec]:
    """step_1 <- step_2 <- … <- step_20."""
    steps: list[StepSpec] = []
    for number in range(1, LENGTH + 1):
        steps.append(_step(f"step_{number}", *steps[-1:]))
    return steps


def _step(name: str, *deps: StepSpec) -> StepSpec:
    def build(output_path: str) -> None:
        with open(os.environ[CALLS], "a") as file:
            file.write(f"{name}\n")
        if os.environ.get(FAILING) == name:
            raise RuntimeError(f"{name} fails on purpose")

    return StepSpec(name, deps=deps, fn=build)


def load(prefix: str) -> dg.JobDefinition:
    """The job. Dagster keeps what it has loaded; with the prefix, each test has its own."""
    assert os.environ["MARIN_PREFIX"] == prefix
    return build_definitions([chain()[-1]]).resolve_job_def(JOB)


def loadable() -> ReconstructableJob:
    """What ``dg.execute_job`` takes."""
    return dg.build_reconstructable_job(
        "helpers.chain_job",
        "load",
        (os.environ["MARIN_PREFIX"],),
        reconstructor_working_directory=str(Path(__file__).parents[1]),
    )
