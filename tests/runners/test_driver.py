"""What the driver makes of an engine's answers, and of an engine that does not answer."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.fake_engine import FakeJob, FakeRunner
from helpers.job_driver import Drive, Stopped
from helpers.runs import is_locked, status_of
from helpers.step_functions import write
from marin_dagster import StepSpec
from marin_dagster.cache import OutputDir, Status, StepCache
from marin_dagster.cache import attempt as attempt_module
from marin_dagster.errors import (
    EngineError,
    EngineTimeoutError,
    JobFailedError,
    JobLostError,
    LeaseLostError,
    RoutingError,
    StoreError,
)
from marin_dagster.runners import (
    JobFile,
    JobState,
    Request,
    StepCall,
    driver,
    job_logs,
    read_job_file,
)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def step() -> StepSpec:
    return StepSpec("step", fn=write)


def started(step: StepSpec, runner: FakeRunner) -> tuple[Drive, FakeJob]:
    runner.submitted.clear()
    drive = Drive(step, runner).start()
    drive.until(lambda: isinstance(drive.job, FakeJob))
    assert isinstance(drive.job, FakeJob)
    return drive, drive.job


def note_of(step: StepSpec) -> JobFile | None:
    return read_job_file(OutputDir.at(step.output_path))


def test_a_job_that_is_preempted_and_goes_on_is_one_success(
    runner: FakeRunner, step: StepSpec
) -> None:
    drive, job = started(step, runner)
    for state in (JobState.RUNNING, JobState.PENDING, JobState.RUNNING):
        job.become(state)

    job.succeed()
    drive.end()

    assert status_of(step) == "SUCCESS"
    assert len(runner.jobs) == 1


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (JobState.LOST, JobLostError),
        (JobState.FAILED, JobFailedError),
        (JobState.CANCELLED, JobFailedError),
    ],
)
def test_how_a_job_ended_is_said(
    runner: FakeRunner, step: StepSpec, state: JobState, error: type[Exception]
) -> None:
    drive, job = started(step, runner)

    job.become(state, "the node caught fire")

    with pytest.raises(error, match=r"step_\w+, job step-\w+-\w+: .*the node caught fire"):
        drive.end()
    assert status_of(step) == "FAILED"
    assert not is_locked(step)
    assert note_of(step) is None


def test_a_success_without_a_record_is_none(runner: FakeRunner, step: StepSpec) -> None:
    drive, job = started(step, runner)

    job.become(JobState.SUCCEEDED)

    with pytest.raises(JobFailedError, match=r"no record of it is in .*workers see this store"):
        drive.end()
    assert status_of(step) == "FAILED"


def test_an_old_record_does_not_make_a_success(runner: FakeRunner, step: StepSpec) -> None:
    drive, job = started(step, runner)
    job.succeed()
    drive.end()
    Path(step.output_path, ".executor_status").write_text("FAILED")

    drive, job = started(step, runner)
    job.become(JobState.SUCCEEDED)

    with pytest.raises(JobFailedError, match="no record"):
        drive.end()


def test_a_log_that_hangs_or_breaks_changes_nothing(
    runner: FakeRunner, step: StepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_logs, "_LOG_DRAIN_S", 0.1)
    blocked, go_on = threading.Event(), threading.Event()

    def log() -> Iterator[tuple[str, str]]:
        yield "stdout", "first\n"
        blocked.set()
        go_on.wait()
        raise ConnectionError("the stream is gone")

    runner.prepare = lambda job: setattr(job, "log", log)
    drive, job = started(step, runner)
    assert blocked.wait(30)

    job.succeed()
    drive.end()

    assert status_of(step) == "SUCCESS"
    assert drive.text("stdout") == "first\n"
    go_on.set()
    drive.until(lambda: "broke off: the stream is gone" in drive.text("stderr"))


def test_a_log_is_read_to_its_end_after_the_job_has_ended(
    runner: FakeRunner, step: StepSpec
) -> None:
    ended = threading.Event()

    def log() -> Iterator[tuple[str, str]]:
        ended.wait()
        yield "stdout", "last words\n"

    runner.prepare = lambda job: setattr(job, "log", log)
    drive, job = started(step, runner)
    job.succeed()
    ended.set()

    assert drive.end().text("stdout") == "last words\n"


def test_an_engine_that_is_away_for_a_while_is_waited_for_and_said(
    runner: FakeRunner, step: StepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_LOG_TROUBLE_S", 0.0)
    monkeypatch.setattr(driver, "_LOOK_S", 0.01)
    drive, job = started(step, runner)

    job.report_trouble("connection refused")
    drive.until(lambda: any("connection refused" in line for line in drive.logged))
    job.succeed()
    drive.end()

    assert sum("connection refused" in line for line in drive.logged) == 1
    assert status_of(step) == "SUCCESS"


def test_an_engine_that_stays_away_ends_the_attempt_and_the_next_attaches(
    runner: FakeRunner, step: StepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "UNREACHABLE_S", 0.0)
    monkeypatch.setattr(driver, "_LOOK_S", 0.01)
    drive, job = started(step, runner)

    job.report_trouble("no route to host")

    with pytest.raises(EngineError, match="no route to host"):
        drive.end()
    assert status_of(step) == "FAILED"
    assert note_of(step) is not None
    assert job.cancels == 0
    job.become(JobState.RUNNING)  # the engine answers again
    again, same = started(step, runner)
    assert same is job
    job.succeed()
    again.end()
    assert status_of(step) == "SUCCESS"
    assert note_of(step) is None


def test_a_job_that_cannot_be_submitted_leaves_no_note(runner: FakeRunner, step: StepSpec) -> None:
    runner.away = "the queue is closed"

    with pytest.raises(EngineError, match="the queue is closed"):
        Drive(step, runner).start().end()

    assert status_of(step) == "FAILED"
    assert note_of(step) is None


def test_a_job_that_may_have_been_submitted_is_looked_for(
    runner: FakeRunner, step: StepSpec
) -> None:
    class Forgetful(FakeRunner):
        def submit(self, name: str, call: StepCall, request: Request) -> FakeJob:
            super().submit(name, call, request)
            raise EngineTimeoutError("no answer")

    forgetful = Forgetful()
    with pytest.raises(EngineTimeoutError):
        Drive(step, forgetful).start().end()
    [job] = forgetful.jobs.values()

    drive, same = started(step, forgetful)

    assert same is job
    job.succeed()
    drive.end()
    assert status_of(step) == "SUCCESS"


def test_the_note_is_there_before_the_job(runner: FakeRunner, step: StepSpec) -> None:
    seen = []
    runner.prepare = lambda job: seen.append((note_of(step), job.name))
    drive, job = started(step, runner)
    job.succeed()
    drive.end()

    [(note, name)] = seen
    assert note is not None
    assert (note.runner, note.job) == ("engine", name)


def test_a_stopped_step_cancels_its_job(runner: FakeRunner, step: StepSpec) -> None:
    drive, job = started(step, runner)

    drive.stop()
    with pytest.raises(Stopped):
        drive.end()

    assert job.cancels == 1
    assert status_of(step) == "FAILED"
    assert note_of(step) is None


def test_a_job_that_does_not_end_when_cancelled_blocks_the_next_attempt(
    runner: FakeRunner, step: StepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_CANCEL_S", 0.05)
    monkeypatch.setattr(driver, "_LOOK_S", 0.01)
    runner.prepare = lambda job: setattr(job, "obeys", False)
    drive, job = started(step, runner)
    drive.stop()
    with pytest.raises(Stopped):
        drive.end()

    with pytest.raises(EngineError, match=r"was cancelled and has not ended yet"):
        Drive(step, runner).start().end()
    assert len(runner.jobs) == 1
    assert job.cancels == 2

    job.become(JobState.CANCELLED)
    again, other = started(step, runner)
    assert other is not job
    other.succeed()
    again.end()


def test_losing_the_lease_cancels_the_job(runner: FakeRunner, step: StepSpec) -> None:
    drive, job = started(step, runner)

    lock = Path(step.output_path, ".executor_status.lock")
    lock.write_text('{"worker_id": "foreign", "timestamp": 99999999999}')

    with pytest.raises(LeaseLostError, match="foreign"):
        drive.end()
    assert job.cancels == 1
    assert status_of(step) == "RUNNING"
    assert is_locked(step)
    assert note_of(step) is None


def test_losing_the_lease_to_who_attached_to_the_job_leaves_it_alone(
    runner: FakeRunner, step: StepSpec
) -> None:
    drive, job = started(step, runner)

    note = Path(step.output_path, ".step_job.json")
    note.write_text(
        f'{{"runner": "engine", "job": "{job.name}", "owner": "foreign", "engine": "fake"}}'
    )
    lock = Path(step.output_path, ".executor_status.lock")
    lock.write_text('{"worker_id": "foreign", "timestamp": 99999999999}')

    with pytest.raises(LeaseLostError, match="foreign"):
        drive.end()
    assert job.cancels == 0
    assert note.exists()


def left_over(step: StepSpec, runner: FakeRunner) -> FakeJob:
    """A job whose driver has died: status RUNNING, a note, and no lease."""
    drive, job = started(step, runner)
    note = Path(step.output_path, ".step_job.json").read_text()
    drive.stop()
    with pytest.raises(Stopped):
        drive.end()
    Path(step.output_path, ".step_job.json").write_text(note)
    Path(step.output_path, ".executor_status").write_text("RUNNING")
    job._status = type(job.status)(JobState.RUNNING)
    return job


def test_a_job_whose_driver_died_is_attached_to(runner: FakeRunner, step: StepSpec) -> None:
    job = left_over(step, runner)

    drive, same = started(step, runner)

    assert same is job
    assert any("attached to job" in line for line in drive.logged)
    owner = note_of(step)
    assert owner is not None
    assert drive.attempt is not None
    assert owner.owner == drive.attempt.worker_id
    job.succeed()
    drive.end()
    assert status_of(step) == "SUCCESS"


def test_a_job_that_finished_after_its_driver_died_is_served(
    runner: FakeRunner, step: StepSpec
) -> None:
    job = left_over(step, runner)
    job.succeed()
    runner.jobs.clear()  # and the engine has forgotten it

    Drive(step, runner).start().end()

    assert status_of(step) == "SUCCESS"
    assert runner.jobs == {}


def rebuilt(step: StepSpec) -> StepSpec:
    """The same step as a dev version, which is built although it is finished."""
    attrs = {"fingerprint": "0", "version": "dev"}
    return StepSpec("step", fn=write, hash_attrs=attrs, override_output_path=step.output_path)


def test_rebuilding_is_not_what_a_job_did_before_the_output_was_finished(
    runner: FakeRunner, step: StepSpec
) -> None:
    step = rebuilt(step)
    job = left_over(step, runner)
    job.succeed()
    Path(step.output_path, ".executor_status").write_text("SUCCESS")

    drive, other = started(step, runner)

    assert other is not job
    other.succeed()
    drive.end()


def test_rebuilding_attaches_to_a_job_that_still_runs(runner: FakeRunner, step: StepSpec) -> None:
    step = rebuilt(step)
    job = left_over(step, runner)
    Path(step.output_path, ".executor_status").write_text("SUCCESS")

    drive, same = started(step, runner)

    assert same is job
    job.succeed()
    drive.end()


def test_after_a_failure_a_record_alone_proves_nothing(runner: FakeRunner, step: StepSpec) -> None:
    job = left_over(step, runner)
    job.succeed()
    runner.jobs.clear()
    Path(step.output_path, ".executor_status").write_text("FAILED")

    drive, other = started(step, runner)

    assert other is not job
    other.succeed()
    drive.end()


def test_a_stopped_step_cancels_its_job_although_the_store_is_away(
    runner: FakeRunner, step: StepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: OutputDir) -> None:
        raise StoreError("the store is away")

    drive, job = started(step, runner)
    monkeypatch.setattr(driver, "read_job_file", refuse)

    drive.stop()
    with pytest.raises(Stopped):
        drive.end()

    assert job.cancels == 1


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.LOST, JobState.CANCELLED])
def test_a_job_that_failed_after_its_driver_died_is_started_anew(
    runner: FakeRunner, step: StepSpec, state: JobState
) -> None:
    job = left_over(step, runner)
    job.become(state)

    drive, other = started(step, runner)

    assert other is not job
    other.succeed()
    drive.end()


def test_a_job_that_the_engine_does_not_know_is_started_anew(
    runner: FakeRunner, step: StepSpec
) -> None:
    job = left_over(step, runner)
    runner.jobs.clear()

    drive, other = started(step, runner)

    assert other is not job
    other.succeed()
    drive.end()


def test_a_job_of_a_runner_that_is_not_configured_any_more_stops_the_step(
    runner: FakeRunner, step: StepSpec
) -> None:
    left_over(step, runner)
    note = Path(step.output_path, ".step_job.json")
    note.write_text(note.read_text().replace('"runner": "engine"', '"runner": "gone"'))

    with pytest.raises(RoutingError, match=r"'gone' .* was left over .* delete .step_job"):
        Drive(step, runner).start().end()

    assert note.exists()


def test_a_job_of_another_engine_under_the_same_name_stops_the_step(
    runner: FakeRunner, step: StepSpec
) -> None:
    left_over(step, runner)
    other = FakeRunner(engine="another")

    with pytest.raises(RoutingError, match=r"'engine' \(fake\) was left .* uses another"):
        Drive(step, other).start().end()

    assert other.jobs == {}


def test_an_engine_that_cannot_say_which_it_is_is_named_with_the_step(step: StepSpec) -> None:
    class Away(FakeRunner):
        @property
        def engine(self) -> str:
            raise EngineError("no controller")

        @engine.setter
        def engine(self, value: str) -> None: ...

    for _ in range(2):  # to submit, and to look for what an earlier driver has left
        with pytest.raises(
            EngineError, match=r"step step_\w+ \(/.*\), runner 'engine': no controller"
        ):
            Drive(step, Away()).start().end()
        note = Path(step.output_path, ".step_job.json")
        note.write_text('{"runner": "engine", "job": "j", "owner": "o", "engine": "fake"}')


def test_a_process_has_ended_with_its_run_worker_whatever_its_runner_was_called(
    runner: FakeRunner, step: StepSpec
) -> None:
    left_over(step, runner)
    note = Path(step.output_path, ".step_job.json")
    content = note.read_text().replace('"fake"', '"process"')
    note.write_text(content.replace('"runner": "engine"', '"runner": "gone"'))

    drive, job = started(step, runner)
    job.succeed()
    drive.end()


def test_a_job_is_found_although_the_status_was_deleted(runner: FakeRunner, step: StepSpec) -> None:
    job = left_over(step, runner)
    Path(step.output_path, ".executor_status").unlink()

    drive, same = started(step, runner)

    assert same is job
    job.succeed()
    drive.end()


def test_a_job_is_cancelled_when_nobody_can_be_told_of_it(
    runner: FakeRunner, step: StepSpec
) -> None:
    class UnwritableLog(list[str]):
        def append(self, line: str) -> None:
            raise ConnectionError("the event log is away")

    drive = Drive(step, runner)
    drive.logged = UnwritableLog()

    with pytest.raises(ConnectionError):
        drive.start().end()

    [job] = runner.jobs.values()
    assert job.cancels == 1
    assert note_of(step) is None


def test_until_success_is_written_the_note_stays(
    runner: FakeRunner, step: StepSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    write_status = attempt_module.write_status

    def note_and_write(folder: OutputDir, status: Status) -> None:
        seen.append((status.value, note_of(step) is not None))
        write_status(folder, status)

    monkeypatch.setattr(attempt_module, "write_status", note_and_write)
    drive, job = started(step, runner)
    job.succeed()
    drive.end()

    assert seen == [("SUCCESS", True)]
    assert note_of(step) is None


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_log_that_cannot_be_written_is_read_to_its_end(
    runner: FakeRunner, step: StepSpec, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_logs, "_LOG_DRAIN_S", 0.1)
    read, go_on = threading.Event(), threading.Event()

    def log() -> Iterator[tuple[str, str]]:
        for _ in range(3):
            yield "stdout", "line\n"
        read.set()

    class Unwritable(list[tuple[str, str]]):
        def append(self, piece: tuple[str, str]) -> None:
            if how == "hangs":
                go_on.wait()
            raise OSError("the disk is full")

    runner.prepare = lambda job: setattr(job, "log", log)
    drive = Drive(step, runner)
    drive.written = Unwritable()
    drive.start()
    assert read.wait(30)
    drive.until(lambda: isinstance(drive.job, FakeJob))
    drive.job.succeed()  # type: ignore[union-attr]

    drive.end()

    assert status_of(step) == "SUCCESS"
    go_on.set()


def test_while_the_engine_is_away_nothing_is_started_beside_a_left_over_job(
    runner: FakeRunner, step: StepSpec
) -> None:
    left_over(step, runner)
    runner.away = "connection refused"

    with pytest.raises(EngineError, match="connection refused"):
        Drive(step, runner).start().end()

    assert note_of(step) is not None


def test_a_note_that_cannot_be_read_is_none(step: StepSpec, runner: FakeRunner) -> None:
    left_over(step, runner)
    for text in ("", "{", "[]", '{"runner": "engine"}', '{"other": 1}'):
        Path(step.output_path, ".step_job.json").write_text(text)
        assert note_of(step) is None
    drive, job = started(step, runner)
    job.succeed()
    drive.end()


def test_a_peer_waits_for_the_drivers_lease_while_the_job_runs(
    runner: FakeRunner, step: StepSpec
) -> None:
    drive, job = started(step, runner)
    peer = Drive(step, runner).start()
    drive.until(lambda: StepCache().look_up(step).owner)

    job.succeed()
    drive.end()
    peer.end()

    assert len(runner.jobs) == 1
