"""Building a finished output again on an engine: until the function begins, it stays finished."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.dying import killed_at_each_change, remove_lock
from helpers.fake_engine import FakeJob, FakeRunner
from helpers.job_driver import Drive, Stopped
from helpers.runs import is_locked, status_of
from helpers.step_functions import write
from marin_dagster import StepSpec
from marin_dagster.cache import OutputDir
from marin_dagster.errors import (
    EngineError,
    EngineTimeoutError,
    JobFailedError,
    JobLostError,
    LeaseLostError,
    RunnerError,
    StoreError,
)
from marin_dagster.runners import (
    JobState,
    JobStatus,
    Request,
    StepCall,
    driver,
    pack,
    read_job_file,
    run_packed,
)
from marin_dagster.runners.payload import forget_record


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def step(runner: FakeRunner) -> StepSpec:
    """A step whose output is finished."""
    step = StepSpec("step", fn=write)
    drive, job = started(step, runner)
    write(step.output_path)
    job.succeed()
    drive.end()
    runner.jobs.clear()
    return step


def started(step: StepSpec, runner: FakeRunner, **options: bool) -> tuple[Drive, FakeJob]:
    drive = Drive(step, runner, **options).start()
    drive.until(lambda: isinstance(drive.job, FakeJob))
    assert isinstance(drive.job, FakeJob)
    return drive, drive.job


def finished(step: StepSpec) -> dict[str, bytes]:
    """What makes an output a finished one, for us and for Marin, and its data."""
    return {
        name: Path(step.output_path, name).read_bytes()
        for name in (".executor_status", ".artifact.json", "data.txt")
    }


class UnwritableLog(list[str]):
    def append(self, line: str) -> None:
        raise ConnectionError("the event log is away")


class Forgetful(FakeRunner):
    def submit(self, name: str, call: StepCall, request: Request) -> FakeJob:
        super().submit(name, call, request)
        raise EngineTimeoutError("no answer")


class Picky(FakeRunner):
    def submit(self, name: str, call: StepCall, request: Request) -> FakeJob:
        raise RunnerError("its function cannot be sent to a worker")


def lose_the_lease(drive: Drive, job: FakeJob) -> None:
    lock = Path(drive.step.output_path, ".executor_status.lock")
    lock.write_text('{"worker_id": "foreign", "timestamp": 99999999999}')


WAYS_OUT: dict[str, tuple[Callable[[Drive, FakeJob], None], type[Exception]]] = {
    "stopped while it waits in the queue": (lambda drive, job: drive.stop(), Stopped),
    "lease lost while it waits in the queue": (lose_the_lease, LeaseLostError),
    "cancelled on the engine": (
        lambda drive, job: job.become(JobState.CANCELLED),
        JobFailedError,
    ),
    "the worker never began": (lambda drive, job: job.become(JobState.FAILED), JobFailedError),
    "lost by the engine": (lambda drive, job: job.become(JobState.LOST), JobLostError),
    "ended well in another store": (
        lambda drive, job: job.become(JobState.SUCCEEDED),
        JobFailedError,
    ),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_job_that_never_begins_leaves_the_output_finished(
    way: str, runner: FakeRunner, step: StepSpec
) -> None:
    end, error = WAYS_OUT[way]
    before = finished(step)
    drive, job = started(step, runner, force=True)
    assert finished(step) == before

    end(drive, job)

    with pytest.raises(error):
        drive.end()
    assert finished(step) == before
    assert read_job_file(OutputDir.at(step.output_path)) is None


@pytest.mark.parametrize(
    ("other", "error"),
    [(Forgetful(), EngineTimeoutError), (Picky(), RunnerError)],
    ids=["no answer", "refused"],
)
def test_a_job_that_is_not_submitted_leaves_the_output_finished(
    other: FakeRunner, error: type[Exception], step: StepSpec
) -> None:
    before = finished(step)

    with pytest.raises(error):
        Drive(step, other, force=True).start().end()

    assert finished(step) == before
    assert not is_locked(step)


def test_an_engine_that_is_away_leaves_the_output_finished(
    runner: FakeRunner, step: StepSpec
) -> None:
    before = finished(step)
    runner.away = "no controller"

    with pytest.raises(EngineError, match="no controller"):
        Drive(step, runner, force=True).start().end()

    assert finished(step) == before
    assert read_job_file(OutputDir.at(step.output_path)) is None


def test_a_job_that_cannot_be_noted_leaves_the_output_finished(
    runner: FakeRunner, step: StepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("the store is full")

    monkeypatch.setattr(driver, "write_job_file", refuse)
    before = finished(step)

    with pytest.raises(StoreError, match="full"):
        Drive(step, runner, force=True).start().end()

    assert finished(step) == before
    assert runner.jobs == {}


def test_a_job_that_nobody_can_be_told_of_leaves_the_output_finished(
    runner: FakeRunner, step: StepSpec
) -> None:
    before = finished(step)
    drive = Drive(step, runner, force=True)
    drive.logged = UnwritableLog()

    with pytest.raises(ConnectionError):
        drive.start().end()

    assert finished(step) == before


def test_from_its_beginning_a_job_has_withdrawn_the_output(
    runner: FakeRunner, step: StepSpec
) -> None:
    drive, job = started(step, runner, force=True)

    job.begin()

    assert status_of(step) == "RUNNING"
    assert not Path(step.output_path, ".artifact.json").exists()
    job.become(JobState.FAILED, "the node caught fire")
    with pytest.raises(JobFailedError, match="fire"):
        drive.end()
    assert status_of(step) == "FAILED"
    assert drive.attempt is not None
    assert drive.attempt.cut_off


def test_a_rebuilt_output_is_finished_again(runner: FakeRunner, step: StepSpec) -> None:
    drive, job = started(step, runner, force=True)

    job.succeed()
    drive.end()

    assert status_of(step) == "SUCCESS"
    assert json.loads(finished(step)[".artifact.json"])["name"] == "step"
    assert drive.attempt is not None
    assert not drive.attempt.cut_off


def test_a_job_that_waited_when_its_driver_died_is_attached_to(
    runner: FakeRunner, step: StepSpec
) -> None:
    drive, job = started(step, runner, force=True)
    note = Path(step.output_path, ".step_job.json")
    content = note.read_text()
    drive.stop()
    with pytest.raises(Stopped):
        drive.end()
    note.write_text(content)
    job._status = JobStatus(JobState.PENDING)

    again, same = started(step, runner, force=True)

    assert same is job
    job.succeed()
    again.end()
    assert status_of(step) == "SUCCESS"


def test_a_worker_that_dies_while_it_withdraws_leaves_nothing_that_is_served_without_a_record(
    step: StepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look(folder: OutputDir) -> None:
        seen.append(status_of(step))
        forget_record(folder)

    monkeypatch.setattr("marin_dagster.runners.payload.forget_record", look)
    runner = FakeRunner()
    drive, job = started(step, runner, force=True)
    job.succeed()
    drive.end()

    assert seen == ["RUNNING"]


class Immediate(FakeRunner):
    """Runs each job in this process, before it answers."""

    def submit(self, name: str, call: StepCall, request: Request) -> FakeJob:
        job = super().submit(name, call, request)
        run_packed(pack(call))
        job.become(JobState.SUCCEEDED)
        return job


def test_killed_at_any_point_a_rebuild_leaves_what_is_whole_or_is_built_again(
    step: StepSpec,
) -> None:
    def rebuild() -> None:
        Drive(step, Immediate(), force=True).start().end()

    seen = set()
    for _ in killed_at_each_change(step.output_path, rebuild):
        status = str(status_of(step))
        seen.add(status)
        remove_lock(step.output_path)
        record_is_there = Path(step.output_path, ".artifact.json").exists()
        assert record_is_there or status != "SUCCESS"
        Drive(step, Immediate()).start().end()
        assert set(finished(step)) == {".executor_status", ".artifact.json", "data.txt"}
        assert status_of(step) == "SUCCESS"
    assert seen == {"SUCCESS", "RUNNING"}
