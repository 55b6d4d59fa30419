"""What the tests of the Fray runner share: small steps, and what became of them."""

import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

from iris_server import IrisServer

from helpers.processes import is_dead, wait_until
from marin_dagster import ResourceConfig, StepSpec
from marin_dagster.cache import OutputDir, read_record
from marin_dagster.cache.record import step_record
from marin_dagster.runners import FraySettings, JobStatus, Request, StepCall
from marin_dagster.runners.base import job_name
from marin_dagster.runners.fray import FrayRunner
from marin_dagster.runners.fray_engine import FrayJob
from marin_dagster.steps.remote import step_function

SMALL = {"cpu": 0.5, "ram": "256m", "disk": "1g"}


def step_at(prefix: str | Path, fn: Any = print, **resources: Any) -> StepSpec:
    """A step that asks for little else than ``resources``."""
    asked = ResourceConfig(**{**SMALL, **resources})
    return StepSpec("corpus/make", fn=fn, output_path_prefix=str(prefix), resources=asked)


def new_runner(server: IrisServer, **settings: Any) -> FrayRunner:
    """A runner as a new run makes it."""
    return FrayRunner("cluster", FraySettings(address=server.url, shared_disk=True, **settings))


def submit(runner: FrayRunner, step: Any) -> FrayJob:
    """The step as a job, without a driver."""
    request = Request.of(step)
    name = job_name(step, request, uuid.uuid4().hex[:8])
    function = step_function(step)
    assert function is not None
    record = step_record(step, None)
    call = StepCall(function, step.name_with_hash, step.output_path, name, record)
    Path(step.output_path).mkdir(parents=True, exist_ok=True)
    return runner.submit(name, call, request)


def end_of(job: FrayJob) -> JobStatus:
    """How the job has ended, when it has."""
    wait_until(lambda: job.status.state.final, f"job {job.id} to end")
    return job.status


def log_of(job: FrayJob) -> str:
    """Everything that the job writes."""
    return "".join(text for _, text in job.logs())


def result_of(step: Any) -> Any:
    """The result in the step's record; None without a record."""
    record = read_record(OutputDir.at(step.output_path))
    return record and record.result


def started(step: Any) -> bool:
    """Whether the step has a child by now."""
    return Path(step.output_path, "pids").exists()


def sleep_with_a_child(output_path: str) -> None:
    """Runs until it is stopped."""
    child = subprocess.Popen(["sleep", "600"])
    pids = Path(output_path, "pids")
    pids.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
    pids.with_suffix(".new").rename(pids)
    print("sleeping", flush=True)
    child.wait()


def assert_gone(step: Any) -> None:
    """By now: what has been reported as ended runs no more."""
    pids = [int(pid) for pid in Path(step.output_path, "pids").read_text().split()]
    assert [is_dead(pid) for pid in pids] == [True, True]
