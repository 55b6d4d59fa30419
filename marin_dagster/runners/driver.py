"""Driving a job: from an open attempt to a finished output, the same for every engine.

The driver holds the lease and the status; the job writes the record. Before a job is submitted,
``.step_job.json`` beside the output says which job of which runner it will be, so that after the
driver's death the next one attaches to the job instead of starting a second. It is removed once the
output is finished, or the job is known to have ended otherwise.

An output that is finished and built again stays finished until its job begins the function: the job
itself withdraws SUCCESS and the record then, since nobody else knows when that is.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

from marin_dagster.cache import Attempt, Provenance, Status, read_record
from marin_dagster.cache.provenance import PROVENANCE_VARIABLE
from marin_dagster.errors import (
    EngineError,
    EngineTimeoutError,
    JobFailedError,
    JobLostError,
    RemoteFunctionError,
    RoutingError,
    RunnerError,
    StoreError,
)
from marin_dagster.runners.base import (
    PROCESS_ENGINE,
    Job,
    JobState,
    JobStatus,
    Request,
    Runner,
    job_name,
)
from marin_dagster.runners.job_file import (
    JOB_FILE,
    JobFile,
    delete_job_file,
    read_job_file,
    write_job_file,
)
from marin_dagster.runners.job_logs import log_of
from marin_dagster.runners.payload import StepCall, forget_fault, forget_record, read_fault
from marin_dagster.steps.paths import PREFIX_VARIABLE, output_prefix
from marin_dagster.steps.protocol import address

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_CANCEL_S = 60.0
"""Clusters give a job time to end by itself first; Slurm by default 30 seconds."""
_LOG_TROUBLE_S = 5.0
_MORE_MEMORY = "give the step more ram, in its resources or under steps in this run's config"
UNREACHABLE_S = 120.0
"""Seconds without an answer after which an engine's job counts as lost."""


@dataclass(frozen=True)
class DriverCallbacks:
    """How whoever drives the step stops it, and what it wants to know."""

    check: Callable[[], None]
    """Raises when the step must stop."""
    waking: Callable[[Callable[[], None]], AbstractContextManager[None]]
    """Makes a context in which the function given is called when ``check`` begins to raise."""
    write: Callable[[str, str], None]
    """Takes what the job writes: ``("stdout" | "stderr", text)``."""
    log: Callable[[str], None]
    """Takes what people should know."""
    describers: Mapping[str, str] = field(default_factory=dict)
    """See :attr:`StepCall.describers`; what they return is in ``RemoteFunctionError.details``."""
    log_levels: Mapping[str, int] = field(default_factory=dict)
    """The lowest level of Python's loggers in the job, by name; ``""`` is the root logger."""


def reattach(
    runners: Mapping[str, Runner], left_over: JobFile, attempt: Attempt, controls: DriverCallbacks
) -> Job | None:
    """The job of an earlier driver, when it still runs or has done its work; None to start anew.

    Args:
        runners: every runner that this run knows, by name.
        left_over: what :func:`read_job_file` found.
        attempt: the open attempt.
        controls: the caller's side.

    Raises:
        RoutingError: the job's runner is none that this run knows.
        EngineError: the engine does not answer, or has not yet ended a job that was cancelled.
        StoreError: the store refused.
    """
    where = f"step {address(attempt.step)} ({attempt.folder.url})"
    runner = runners.get(left_over.runner)
    with _naming(attempt, left_over.runner):
        engine = runner.engine if runner is not None else ""
    if left_over.engine == PROCESS_ENGINE:
        job = None  # it has ended with the process whose lease has run out
    elif runner is None or engine != left_over.engine:
        here = "has no runner of that name" if runner is None else f"asks {engine}"
        raise RoutingError(
            f"{where}: job {left_over.job} of the runner {left_over.runner!r} "
            f"({left_over.engine}) was left over by an earlier run and may still be writing "
            f"there, but this run {here}. Configure that runner, or make sure that the job has "
            f"ended and delete {JOB_FILE}."
        )
    else:
        with _naming(attempt, runner.name):
            job = runner.attach(left_over.job)
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
    # It may be at its function, and what was submitted before SUCCESS does not withdraw it.
    attempt.withdraw()
    write_job_file(attempt, replace(left_over, owner=attempt.worker_id))
    controls.log(
        f"attached to job {job.label} of {left_over.runner}, which an earlier run had submitted"
    )
    return job


def submit(runner: Runner, attempt: Attempt, request: Request, controls: DriverCallbacks) -> Job:
    """Start a job for an open attempt, with a note of it beside the output first.

    Raises:
        RunnerError: the function cannot be sent to a worker.
        EngineError: the engine is not there, or refused the job; nothing runs.
        EngineTimeoutError: the engine did not answer; the next attempt looks for the job.
        StoreError: the store refused.
    """
    name = job_name(attempt.step, request, attempt.id)
    call = StepCall.of(attempt, name, controls.describers, controls.log_levels)
    with _naming(attempt, runner.name):
        note = JobFile(runner.name, name, attempt.worker_id, runner.engine)
    forget_fault(attempt.folder)
    if not attempt.stands:
        forget_record(attempt.folder)
    write_job_file(attempt, note)
    try:
        with _naming(attempt, runner.name):
            job = runner.submit(name, call, _with_surroundings(request, attempt.provenance))
    except RunnerError as error:
        if not isinstance(error, EngineTimeoutError):
            attempt.folder.delete(JOB_FILE)
        raise
    page = f" ({job.url})" if job.url else ""
    try:
        controls.log(f"submitted to {runner.name} as job {job.label}{page}")
    except BaseException:
        _stop(job, attempt)
        if job.status.state.final:
            delete_job_file(attempt)
        raise
    return job


def finish(job: Job, attempt: Attempt, controls: DriverCallbacks) -> None:
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
        with controls.waking(job.wake), log_of(job, controls.write):
            _wait(job, attempt, controls)
        _judge(job, attempt)
    except BaseException:
        if job.status.state.final:
            delete_job_file(attempt)
        raise
    attempt.has_record = True
    # Not before SUCCESS: until then the next driver must find the job that has done the work.
    attempt.scaffold = (JOB_FILE,)


@contextmanager
def _naming(attempt: Attempt, runner: str) -> Iterator[None]:
    """Have a runner's errors name the step, its path and the runner."""
    try:
        yield
    except RunnerError as error:
        where = f"step {address(attempt.step)} ({attempt.folder.url})"
        raise type(error)(f"{where}, runner {runner!r}: {error}") from error


def _with_surroundings(request: Request, provenance: Provenance) -> Request:
    """The request with what functions ask their environment for: the prefix of this process, for
    output paths, and the provenance, for records that they write themselves. As Marin's clients
    do it, so that its own functions find both."""
    environment = {PROVENANCE_VARIABLE: provenance.to_json()}
    if PREFIX_VARIABLE in os.environ:
        environment[PREFIX_VARIABLE] = output_prefix(None)
    return replace(request, env_vars={**environment, **request.env_vars})


def _wait(job: Job, attempt: Attempt, controls: DriverCallbacks) -> None:
    """Wait for the end. When the step must stop, so must the job; when the engine is away, it is
    left for the next attempt."""
    logged_at = float("-inf")
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
            if silent_s > _LOG_TROUBLE_S and since > logged_at:
                logged_at = since
                controls.log(f"the engine does not answer, and is asked again: {error}")
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
        note = read_job_file(attempt.folder)
        if note is not None and note.owner != attempt.worker_id:
            return
    except StoreError:
        logger.exception("could not read who owns job %s", job.label)
    _cancel(job)
    if note is not None and not job.status.state.final:
        try:
            write_job_file(attempt, replace(note, cancelled=True))
        except StoreError:
            logger.exception("could not note that job %s was cancelled", job.label)


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
    where = f"step {address(attempt.step)}, job {job.label}"
    status: JobStatus = job.status
    if status.state is JobState.SUCCEEDED:
        # A record of a finished output of before is not the job's.
        if attempt.still_stands() or read_record(attempt.folder) is None:
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
        memory = f"out of memory ({_MORE_MEMORY}): " if fault.type == "MemoryError" else ""
        raise RemoteFunctionError(
            f"{where}: {memory}{fault.type}: {fault.message}\n\n{fault.traceback.rstrip()}",
            fault.details,
        )
    hint = f". {_MORE_MEMORY.capitalize()}" if "out of memory" in reason else ""
    raise JobFailedError(f"{where}: died: {reason}{hint}")
