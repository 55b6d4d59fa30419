"""One graph in which every outcome occurs, as jobs that other processes can load again."""

import os
from pathlib import Path
from typing import Any

import dagster as dg

from helpers.fake_engine import FakeJob, FakeRunner
from marin_dagster import ResourceConfig, StepSpec, build_definitions
from marin_dagster.runners import JobState

FAILURE = "fails on purpose"


def write(output_path: str) -> None:
    """Leave a file and a page to show."""
    Path(output_path, "data.txt").write_text("12345")
    Path(output_path, "page.md").write_text("# Page")


def fail(output_path: str) -> None:
    """Leave a file and fail."""
    write(output_path)
    raise RuntimeError(FAILURE)


def steps(resources: ResourceConfig | None) -> list[StepSpec]:
    """``gone`` -> ``known`` -> ``fresh``, ``broken`` -> ``below``, and ``found`` beside them."""
    gone = StepSpec("gone", fn=write, resources=resources)
    known = StepSpec("known", deps=[gone], fn=write, resources=resources)
    fresh = StepSpec("fresh", deps=[known], fn=write, resources=resources)
    broken = StepSpec("broken", fn=fail, resources=resources)
    below = StepSpec("below", deps=[broken], fn=write, resources=resources)
    found = StepSpec("found", fn=write, resources=resources)
    return [fresh, below, found]


def _work(job: FakeJob) -> None:
    assert job.call is not None
    write(job.call.output_path)
    if Path(job.call.output_path).name.startswith("broken"):
        job.become(JobState.FAILED, FAILURE)
    else:
        job.succeed()


def load(way: str, prefix: str) -> dg.JobDefinition:
    """The job: under one of Dagster's executors, or under ours with steps in one kind of place.

    Dagster keeps what it has loaded once, so the prefix is an argument: another test, another job.
    """
    assert os.environ["MARIN_PREFIX"] == prefix
    resources = ResourceConfig(ram="512m") if way in ("process", "engine") else None
    theirs = {"in process": dg.in_process_executor, "multiprocess": dg.multiprocess_executor}
    definitions = build_definitions(
        steps(resources),
        executor=theirs.get(way),
        runners={"engine": FakeRunner(prepare=_work)} if way == "engine" else None,
    )
    return definitions.resolve_job_def("materialize_steps")


def loadable(way: str) -> Any:
    """What ``dg.execute_job`` takes, and what another process can load."""
    return dg.build_reconstructable_job(
        "helpers.outcome_jobs",
        "load",
        (way, os.environ["MARIN_PREFIX"]),
        reconstructor_working_directory=str(Path(__file__).parents[1]),
    )
