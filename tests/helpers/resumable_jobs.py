"""Jobs that other processes can load again, over steps that note in a file which of them ran."""

import os
from pathlib import Path
from typing import Any

import dagster as dg

from marin_dagster import StepSpec, build_definitions

CALLS = "FACE_JOBS_CALLS"
"""Environment variable: the file in which functions note their step's name and process."""
FAILING = "FACE_JOBS_FAILING"
"""Environment variable: name of the step that fails."""


def _step(name: str, *deps: StepSpec) -> StepSpec:
    def build(output_path: str) -> dict[str, int]:
        with open(os.environ[CALLS], "a") as file:
            file.write(f"{name} {os.getpid()}\n")
        Path(output_path, "data.txt").write_text(name)
        if os.environ.get(FAILING) == name:
            raise RuntimeError(f"{name} fails at minute 35")
        return {"size": len(name)}

    return StepSpec(name, deps=deps, fn=build)


def steps() -> list[StepSpec]:
    """prep -> train -> evaluate, and other beside them."""
    prep = _step("prep")
    return [_step("evaluate", _step("train", prep)), _step("other", prep)]


EXECUTORS = {
    "marin": None,
    "in process": dg.in_process_executor,
    "multiprocess": dg.multiprocess_executor,
}


def load(executor: str, prefix: str) -> dg.JobDefinition:
    """The job under one of three executors.

    Dagster keeps what it has loaded once, so the prefix is an argument: another test, another job.
    """
    assert os.environ["MARIN_PREFIX"] == prefix
    definitions = build_definitions(steps, executor=EXECUTORS[executor])
    return definitions.resolve_job_def("materialize_steps")


def loadable(executor: str) -> Any:
    """What ``dg.execute_job`` takes, and what another process can load."""
    return dg.build_reconstructable_job(
        "helpers.resumable_jobs",
        "load",
        (executor, os.environ["MARIN_PREFIX"]),
        reconstructor_working_directory=str(Path(__file__).parents[1]),
    )
