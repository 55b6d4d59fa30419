"""Driving a job: from an open attempt to a finished output, the same for every engine.

The driver holds the lease and the status; the job writes the record. Before a job is submitted,
``.step_job.json`` beside the output says which job of which runner it will be, so that after the
driver's death the next one attaches to the job instead of starting a second. It is removed when the
job is known to have ended.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace

from marin_dagster.cache import Attempt, Folder, Status, read_record
from marin_dagster.errors import (
    EngineAwayError,
    EngineError,
    JobFailedError,
    JobLostError,
    RemoteFunctionError,
    RoutingError,
    RunnerError,
    StoreError,
)
from marin_dagster.runners.base import Job, JobState, JobStatus, Request, Runner, job_name
from marin_dagster.runners.payload import StepCall, forget_traces, read_fault
from marin_dagster.steps.paths import PREFIX_VARIABLE, output_prefix

logger = logging.getLogger(__name__)

JOB_FILE = ".step_job.json"

_LOOK_S = 1.0
_LOG_DRAIN_S = 5.0
_CANCEL_S = 60.0
"""Clusters give a job time to end by itself first; Slurm by default 30 seconds."""
_SAY_TROUBLE_S = 5.0
UNREACHABLE_S = 120.0
"""Seconds without an answer after which an engine's job counts as lost."""


@dataclass(frozen=True)
class JobNote:
    """The job that builds an output: what ``.step_job.json`` says."""

    runner: str
    job: str
    owner: str
    """Worker id of the attempt that submitted it, or attached to it last."""
    cancelled: bool = False
    """Its driver wanted it stopped, and did not see it end."""


@dataclass(frozen=True)
class Controls:
    """How whoever drives the step stops it, and what it wants to know."""

    check: Callable[[], None]
    """Raises when the step must stop."""
    waking: Callable[[Callable[[], None]], AbstractContextManager[None]]
    """Makes a context in which the function given is called when ``check`` begins to raise."""
    write: Callable[[str, str], None]
    """Takes what the job writes: ``("stdout" | "stderr", text)``."""
    say: Callable[[str], None]
    """Takes what people should know."""


def read_job_note(folder: Folder) -> JobNote | None:
    """The job that was submitted for an output and is not known to have ended.

    Raises:
        StoreError: the store refused.
    """
    try:
        return JobNote(**json.loads(folder.read(JOB_FILE) or b""))
    except (ValueError, TypeError):
        return None


def take_over(
    runners: Mapping[str, Runner], left_over: JobNote, attempt: Attempt, controls: Controls
) -> Job | None:
    """The job of an earlier driver, when it still runs or has done its work; None to start anew.

    Args:
        runners: every runner that this run knows, by name.
        left_over: what :func:`read_job_note` found.
        attempt: the open attempt.
        controls: the caller's side.

    Raises:
        RoutingError: the job's runner is none that this run knows.
        EngineError: the engine does not answer, or has not yet ended a job that was cancelled.
        StoreError: the store refused.
    """
    where = f"step {attempt.step.name_with_hash} ({attempt.folder.url})"
    if left_over.runner not in runners:
        raise RoutingError(
            f"{where}: job {left_over.job} of the runner {left_over.runner!r} was left over by an "
            "earlier run and may still be writing there, but this run has no such runner. "
            f"Configure it, or make sure that the job has ended and delete {JOB_FILE}."
        )
    job = runners[left_over.runner].attach(left_over.job)
    interrupted = attempt.previous is Status.RUNNING
    if job is None and interrupted and read_record(attempt.folder) is not None:
        # The driver died between the end of the job and its own, and the engine has forgotten it.
        job = Job(left_over.job)
        job.report(JobStatus(JobState.SUCCEEDED))
    if job is not None and left_over.cancelled and not job.status.state.final:
        _cancel(job)
        if not job.status.state.final:
            raise EngineError(
                f"{where}: job {job.label} of an earlier run was cancelled and has not ended yet. "
                f"Try again when {left_over.runner} has ended it."
            )
    # An output that was finished since then is being rebuilt: what is over is not the rebuilding.
    rebuilding = attempt.previous is Status.SUCCESS
    if job is None or job.status.state.failed or (rebuilding and job.status.state.final):
        attempt.folder.delete(JOB_FILE)
        return None
    _write_note(attempt, JobNote(left_over.runner, job.name, attempt.worker_id))
    controls.say(
        f"attached to job {job.label} of {left_over.runner}, which an earlier run had submitted"
    )
    return job


def submit(runner: Runner, attempt: Attempt, request: Request, controls: Controls) -> Job:
    """Start a job for an open attempt, with a note of it beside the output first.

    Raises:
        RunnerError: the function cannot be sent to a worker.
        EngineError: the engine is not there, or refused the job; nothing runs.
        EngineAwayError: the engine did not answer; the next attempt looks for the job.
        StoreError: the store refused.
    """
    name = job_name(attempt.step, request, attempt.id)
    call = StepCall.of(attempt, name)
    forget_traces(attempt.folder)
    _write_note(attempt, JobNote(runner.name, name, attempt.worker_id))
    try:
        job = runner.submit(name, call, _with_prefix(request))
    except EngineAwayError:
        raise
    except RunnerError:
        attempt.folder.delete(JOB_FILE)
        raise
    page = f" ({job.url})" if job.url else ""
    controls.say(f"submitted to {runner.name} as job {job.label}{page}")
    return job


def finish(job: Job, attempt: Attempt, controls: Controls) -> None:
    """Wait for the job; when this returns, the record is there and the caller commits.

    Whatever else ends the waiting cancels the job: an interruption, the lease lost.

    Raises:
        EngineError: the engine has not answered for two minutes; the next attempt attaches.
        RemoteFunctionError: the function raised.
        JobFailedError: the job died, or was cancelled by somebody else.
        JobLostError: the engine lost it.
        LeaseLostError: another worker took the output over.
        StoreError: the store refused.
    """
    try:
        with controls.waking(job.wake), _log_of(job, controls.write):
            _wait(job, attempt, controls)
        _judge(job, attempt)
    except BaseException:
        if job.status.state.final:
            _forget(attempt)
        raise
    attempt.folder.delete(JOB_FILE)
    attempt.has_record = True


def _with_prefix(request: Request) -> Request:
    """The request with the prefix of this process, which functions ask for output paths."""
    prefix = {PREFIX_VARIABLE: output_prefix(None)} if PREFIX_VARIABLE in os.environ else {}
    return replace(request, env_vars={**prefix, **request.env_vars})


def _write_note(attempt: Attempt, note: JobNote) -> None:
    attempt.folder.write(JOB_FILE, json.dumps(asdict(note)).encode())


def _wait(job: Job, attempt: Attempt, controls: Controls) -> None:
    """Wait for the end. When the step must stop, so must the job; when the engine is away, it is
    left for the next attempt."""
    said_at = float("-inf")
    try:
        while not job.wait(_LOOK_S).state.final:
            controls.check()
            if attempt.lost is not None:
                raise attempt.lost
            if job.trouble is None:
                continue
            since, error = job.trouble
            silent_s = time.monotonic() - since
            if silent_s > UNREACHABLE_S:
                raise EngineError(
                    f"job {job.label}: its engine has not answered for "
                    f"{UNREACHABLE_S:.0f} s: {error}. The next attempt attaches to it if it is "
                    "still there."
                )
            if silent_s > _SAY_TROUBLE_S and since > said_at:
                said_at = since
                controls.say(f"the engine does not answer, and is asked again: {error}")
        controls.check()
    except EngineError:
        raise
    except BaseException:
        if not job.status.state.final:
            _stop(job, attempt)
        raise


def _stop(job: Job, attempt: Attempt) -> None:
    """Cancel the job, unless another driver has attached to it since the lease was lost."""
    note = None
    try:
        note = read_job_note(attempt.folder)
        if note is not None and note.owner != attempt.worker_id:
            return
    except StoreError:
        logger.exception("could not read who owns job %s", job.label)
    _cancel(job)
    if note is not None and not job.status.state.final:
        try:
            _write_note(attempt, replace(note, cancelled=True))
        except StoreError:
            logger.exception("could not note that job %s was cancelled", job.label)


def _forget(attempt: Attempt) -> None:
    """Remove the note of a job that has ended, if it is still this attempt's."""
    try:
        note = read_job_note(attempt.folder)
        if note is not None and note.owner == attempt.worker_id:
            attempt.folder.delete(JOB_FILE)
    except StoreError:
        logger.exception("could not remove %s of %s", JOB_FILE, attempt.folder.url)


def _cancel(job: Job) -> None:
    """Cancel and wait for the end, up to a minute; says so in the log when it does not come."""
    try:
        job.cancel()
    except Exception:
        logger.exception("could not cancel job %s", job.label)
        return
    give_up_at = time.monotonic() + _CANCEL_S
    while time.monotonic() < give_up_at and not job.wait(_LOOK_S).state.final:
        pass


def _judge(job: Job, attempt: Attempt) -> None:
    """Raise unless the job has done what it should."""
    where = f"step {attempt.step.name_with_hash}, job {job.label}"
    status: JobStatus = job.status
    if status.state is JobState.SUCCEEDED:
        if read_record(attempt.folder) is None:
            raise JobFailedError(
                f"{where}: the job ended well, but no record of it is in {attempt.folder.url}. "
                "Make sure that the engine's workers see this store."
            )
        return
    reason = status.reason or status.state.value
    if status.state is JobState.LOST:
        raise JobLostError(f"{where}: lost: {reason}")
    if status.state is JobState.CANCELLED:
        raise JobFailedError(f"{where}: cancelled on the engine: {reason}")
    fault = read_fault(attempt.folder, job.name)
    if fault is not None:
        memory = "out of memory: " if fault.type == "MemoryError" else ""
        raise RemoteFunctionError(
            f"{where}: {memory}{fault.type}: {fault.message}\n\n{fault.traceback.rstrip()}"
        )
    raise JobFailedError(f"{where}: died: {reason}")


@contextmanager
def _log_of(job: Job, write: Callable[[str, str], None]) -> Iterator[None]:
    """Copy the job's log while the body runs, and a little longer, until it is drained."""

    def copy() -> None:
        try:
            for stream, text in job.logs():
                write(stream, text)
        except Exception as error:
            write("stderr", f"[the log of job {job.label} broke off: {error}]\n")

    thread = threading.Thread(target=copy, name=f"marin-log-{job.name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        # A log that hangs holds nobody up.
        thread.join(_LOG_DRAIN_S)
