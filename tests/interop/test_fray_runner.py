"""Steps as jobs of a real Iris controller, through Fray: from submission to the end."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fray_steps import (
    assert_gone,
    end_of,
    log_of,
    new_runner,
    result_of,
    sleep_with_a_child,
    started,
    step_at,
    submit,
)
from iris.client.client import IrisClient
from iris.cluster.types import JobName
from iris_server import IrisServer

from helpers.processes import wait_until
from marin_dagster.cache import OutputDir
from marin_dagster.runners import JobState, JobStatus, Request
from marin_dagster.runners.fray import FrayRunner
from marin_dagster.runners.fray_engine import FrayJob
from marin_dagster.runners.payload import read_fault

pytestmark = pytest.mark.interop


def test_a_job_runs_elsewhere_and_leaves_its_record(
    runner: FrayRunner, iris: IrisServer, tmp_path: Path
) -> None:
    def build(output_path: str) -> dict[str, Any]:
        Path(output_path, "data.txt").write_text("made")
        print("on stdout\n\nwithout an end", end="")
        print("on stderr", file=sys.stderr)
        return {"pid": os.getpid()}

    step = step_at(tmp_path, build)
    assert runner.refuses(step, Request.of(step)) is None

    job = submit(runner, step)

    assert end_of(job) == JobStatus(JobState.SUCCEEDED)
    assert Path(step.output_path, "data.txt").read_text() == "made"
    assert result_of(step)["pid"] != os.getpid()
    assert job.id.endswith(f"/{job.name}")
    assert job.url is not None
    assert job.url.startswith(f"{iris.url}/#/job/")
    assert job.url.endswith(f"%2F{job.name}")
    log = list(job.logs())
    assert [text for stream, text in log if stream == "stderr"] == ["on stderr\n"]
    lines = [text for stream, text in log if stream == "stdout"]
    assert lines == ["on stdout\n", "\n", "without an end\n"]


def test_an_exception_leaves_its_remote_traceback(runner: FrayRunner, tmp_path: Path) -> None:
    def build(output_path: str) -> None:
        raise LookupError("no such corpus")

    step = step_at(tmp_path, build)
    job = submit(runner, step)

    status = end_of(job)

    assert status.state is JobState.FAILED
    assert status.reason == "exit code 1: LookupError: no such corpus"
    fault = read_fault(OutputDir.at(step.output_path), job.name)
    assert fault is not None
    assert (fault.type, fault.message) == ("LookupError", "no such corpus")
    assert "test_fray_runner.py" in fault.traceback
    assert "LookupError: no such corpus" in log_of(job)


@pytest.mark.parametrize(("number", "name"), [(11, "SIGSEGV"), (9, "SIGKILL")])
def test_a_signal_is_named(runner: FrayRunner, tmp_path: Path, number: int, name: str) -> None:
    job = submit(runner, step_at(tmp_path, lambda output_path: os.kill(os.getpid(), number)))

    status = end_of(job)

    assert status.state is JobState.FAILED
    assert status.reason.startswith(f"signal {number} ({name})")


def test_a_running_job_is_cancelled_with_its_children(runner: FrayRunner, tmp_path: Path) -> None:
    step = step_at(tmp_path, sleep_with_a_child)
    job = submit(runner, step)
    wait_until(lambda: started(step), "the step to start")

    job.cancel()
    job.cancel()

    assert end_of(job).state is JobState.CANCELLED
    assert_gone(step)
    job.cancel()


def test_a_pending_job_is_cancelled(runner: FrayRunner, tmp_path: Path) -> None:
    filling = step_at(tmp_path, sleep_with_a_child, cpu=8)
    first = submit(runner, filling)
    wait_until(lambda: started(filling), "the first step to take the machine")
    waiting = step_at(tmp_path, sleep_with_a_child, cpu=7)
    second = submit(runner, waiting)

    second.cancel()

    assert end_of(second).state is JobState.CANCELLED
    first.cancel()
    end_of(first)


def test_a_line_of_the_log_comes_before_the_end(runner: FrayRunner, tmp_path: Path) -> None:
    def build(output_path: str) -> None:
        print("waiting to go", flush=True)
        while not Path(output_path, "go").exists():
            time.sleep(0.05)

    step = step_at(tmp_path, build)
    job = submit(runner, step)

    assert next(job.logs()) == ("stdout", "waiting to go\n")
    assert job.status.state in (JobState.PENDING, JobState.RUNNING)
    Path(step.output_path, "go").touch()
    assert end_of(job).state is JobState.SUCCEEDED


def test_a_job_is_found_again_by_name(runner: FrayRunner, iris: IrisServer, tmp_path: Path) -> None:
    step = step_at(tmp_path, sleep_with_a_child)
    job = submit(runner, step)
    wait_until(lambda: started(step), "the step to start")
    later = new_runner(iris)

    found = later.attach(job.name)

    assert found is not None
    assert (found.id, found.url) == (job.id, job.url)
    assert found.status.state is JobState.RUNNING
    assert next(found.logs()) == ("stdout", "sleeping\n")
    found.cancel()
    assert end_of(found).state is JobState.CANCELLED
    ended = new_runner(iris).attach(job.name)
    assert ended is not None
    assert ended.status.state is JobState.CANCELLED
    assert later.attach(job.name[:-1]) is None
    assert later.attach("never-submitted") is None
    later.close()


def test_a_preempted_job_is_lost_not_failed(
    runner: FrayRunner, iris: IrisServer, tmp_path: Path
) -> None:
    step = step_at(tmp_path, sleep_with_a_child)
    job = submit(runner, step)
    wait_until(lambda: started(step), "the step to start")

    preempt(iris, job, "somebody pays more")

    status = end_of(job)
    assert status == JobStatus(JobState.LOST, "preempted: somebody pays more")
    assert_gone(step)


def test_iris_may_start_a_preempted_job_again(iris: IrisServer, tmp_path: Path) -> None:
    def build(output_path: str) -> None:
        if not started(step):
            sleep_with_a_child(output_path)

    step = step_at(tmp_path, build)
    runner = new_runner(iris, max_retries_preemption=1)
    job = submit(runner, step)
    wait_until(lambda: started(step), "the step to start")

    preempt(iris, job, "again, please")

    assert end_of(job).state is JobState.SUCCEEDED
    runner.close()


def preempt(iris: IrisServer, job: FrayJob, reason: str) -> None:
    with IrisClient.remote(iris.url) as client:
        client.job(JobName.from_wire(job.id)).task(0).preempt(reason=reason)


def test_ranks_meet_and_the_first_writes_the_record(runner: FrayRunner, tmp_path: Path) -> None:
    def build(output_path: str) -> dict[str, str]:
        task = os.environ["IRIS_TASK_ID"].partition(":")[0]
        rank = task.rpartition("/")[2]
        Path(output_path, f"rank-{rank}").touch()
        while len(list(Path(output_path).glob("rank-*"))) < 2:
            time.sleep(0.05)
        print("met")
        return {"rank": rank}

    step = step_at(tmp_path, build, replicas=2)
    job = submit(runner, step)

    assert end_of(job).state is JobState.SUCCEEDED
    assert result_of(step) == {"rank": "0"}
    assert sorted(job.logs()) == [("stdout", "[0] met\n"), ("stdout", "[1] met\n")]


def test_a_rank_that_fails_is_named(runner: FrayRunner, tmp_path: Path) -> None:
    def build(output_path: str) -> None:
        if "/1:" in os.environ["IRIS_TASK_ID"]:
            os.kill(os.getpid(), 11)
        time.sleep(600)

    status = end_of(submit(runner, step_at(tmp_path, build, replicas=2)))

    assert status == JobStatus(JobState.FAILED, "rank 1: signal 11 (SIGSEGV)")
