"""The driver: takes an open attempt through a job to a finished output, on any engine.

The driver holds the lease and writes the status; the job writes the record. Before it submits, it
writes ``.step_job.json`` beside the output, with the runner and the job's name. If the driver
dies, the next one attaches to that job instead of starting a second. The file is removed when the
output is finished, or when the job has ended otherwise.

A finished output that is built again stays finished until the job begins the function. Only the job
knows that moment, so the job itself withdraws SUCCESS and the record.
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
from marin_dagster.runners.output_reads import ReadScope
from marin_dagster.runners.payload import StepCall, forget_fault, forget_record, read_fault
from marin_dagster.steps.paths import PREFIX_VARIABLE, output_prefix
from marin_dagster.steps.protocol import address

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_CANCEL_S = 60.0
"""How long a cancel may take: clusters send SIGKILL late, Slurm by default after 30 seconds."""
_LOG_TROUBLE_S = 5.0
_MORE_MEMORY = "give the step more ram, in its resources or under steps in this run's config"
UNREACHABLE_S = 120.0
"""How long an engine may be silent before the attempt fails."""


@dataclass(frozen=True)
class DriverCallbacks:
    """How the caller stops a step, and where its messages go."""

    check: Callable[[], None]
    """Raises if the step must stop."""
    waking: Callable[[Callable[[], None]], AbstractContextManager[None]]
    """Returns a context in which the given function is called when ``check`` begins to raise."""
    write: Callable[[str, str], None]
    """Takes the job's output: ``("stdout" | "stderr", text)``."""
    log: Callable[[str], None]
    """Takes the driver's messages for people."""
    describers: Mapping[str, str] = field(default_factory=dict)
    """See :attr:`StepCall.describers`; ``RemoteFunctionError.details`` has the description."""
    log_levels: Mapping[str, int] = field(default_factory=dict)
    """See :attr:`StepCall.log_levels`."""
    reads: ReadScope | None = None
    """See :attr:`StepCall.reads`."""


def reattach(
    runners: Mapping[str, Runner], left_over: JobFile, attempt: Attempt, callbacks: DriverCallbacks
) -> Job | None:
    """Attach to the job of an earlier driver; None if a new job must be started.

    Args:
        runners: every runner of this run, by name.
        left_over: the result of :func:`read_job_file`.
        attempt: the open attempt.
        callbacks: the caller's side.

    Raises:
        RoutingError: this run does not have the job's runner.
        EngineError: the engine does not answer, or a cancelled job has not ended yet.
        StoreError: the store refused.
    """
    job = _left_over_job(runners, left_over, attempt)
    if job is not None and left_over.cancelled and not job.status.state.final:
        _cancel(job)
        if not job.status.state.final:
            raise EngineError(
                f"{_where(attempt)}: job {job.label} of an earlier run was cancelled and has not "
                f"ended yet. Try again when {left_over.runner} has ended it."
            )
    # If the output is finished, a job that has ended is the one that built it, not a rebuild.
    rebuilding = attempt.previous is Status.SUCCESS
    if job is None or job.status.state.failed or (rebuilding and job.status.state.final):
        attempt.folder.delete(JOB_FILE)
        return None
    # The job may have begun its function. If it was submitted before the output was finished, it
    # does not withdraw SUCCESS itself.
    attempt.withdraw()
    write_job_file(attempt, replace(left_over, owner=attempt.worker_id))
    callbacks.log(f"attached to job {job.label} of {left_over.runner}, submitted by an earlier run")
    return job


def _left_over_job(
    runners: Mapping[str, Runner], left_over: JobFile, attempt: Attempt
) -> Job | None:
    """The job of a job file; None if it has ended and its engine has forgotten it."""
    runner = runners.get(left_over.runner)
    job = None
    # A process has ended with its run worker, whose lease has run out.
    if left_over.engine != PROCESS_ENGINE:
        with _naming(attempt, left_over.runner):
            engine = runner.engine if runner is not None else ""
        if runner is None or engine != left_over.engine:
            here = "has no runner of that name" if runner is None else f"uses {engine}"
            raise RoutingError(
                f"{_where(attempt)}: job {left_over.job} of the runner {left_over.runner!r} "
                f"({left_over.engine}) was left over by an earlier run and may still be writing "
                f"there, but this run {here}. Configure that runner, or make sure that the job has "
                f"ended and delete {JOB_FILE}."
            )
        with _naming(attempt, runner.name):
            job = runner.attach(left_over.job)
    interrupted = attempt.previous is Status.RUNNING
    if job is None and interrupted and read_record(attempt.folder) is not None:
        # The job succeeded, but its driver died before it wrote SUCCESS.
        job = Job(left_over.job)
        job.report(JobStatus(JobState.SUCCEEDED))
    return job


def submit(runner: Runner, attempt: Attempt, request: Request, callbacks: DriverCallbacks) -> Job:
    """Write the job file of an open attempt, then submit the job.

    Raises:
        RunnerError: the function cannot be sent to a worker.
        EngineError: the engine is unreachable or refused the job; nothing runs.
        EngineTimeoutError: the engine did not answer; the next attempt looks for the job.
        StoreError: the store refused.
    """
    name = job_name(attempt.step, request, attempt.id)
    call = StepCall.of(attempt, name, callbacks.describers, callbacks.log_levels, callbacks.reads)
    with _naming(attempt, runner.name):
        job_file = JobFile(runner.name, name, attempt.worker_id, runner.engine)
    forget_fault(attempt.folder)
    if not attempt.stands:
        forget_record(attempt.folder)
    write_job_file(attempt, job_file)
    try:
        with _naming(attempt, runner.name):
            job = runner.submit(name, call, _with_environment(request, attempt.provenance))
    except RunnerError as error:
        if not isinstance(error, EngineTimeoutError):
            attempt.folder.delete(JOB_FILE)
        raise
    page = f" ({job.url})" if job.url else ""
    try:
        callbacks.log(f"submitted to {runner.name} as job {job.label}{page}")
    except BaseException:
        _stop(job, attempt)
        if job.status.state.final:
            delete_job_file(attempt)
        raise
    return job


def finish(job: Job, attempt: Attempt, callbacks: DriverCallbacks) -> None:
    """Wait until the job has written the record; the caller then commits the attempt.

    An interruption or a lost lease cancels the job.

    Raises:
        EngineError: the engine did not answer for two minutes; the next attempt attaches.
        RemoteFunctionError: the function raised.
        JobFailedError: the job died, or was cancelled on the engine.
        JobLostError: the engine lost the job.
        LeaseLostError: another worker has taken the output over.
        StoreError: the store refused.
    """
    try:
        with callbacks.waking(job.wake), log_of(job, callbacks.write):
            _wait(job, attempt, callbacks)
        _judge(job, attempt)
    except BaseException:
        if job.status.state.final:
            delete_job_file(attempt)
        raise
    attempt.has_record = True
    # Removed after SUCCESS only: until then, the next driver must find the job that has succeeded.
    attempt.scaffold = (JOB_FILE,)


@contextmanager
def _naming(attempt: Attempt, runner: str) -> Iterator[None]:
    """Add the step, its path and the runner to a runner's errors."""
    try:
        yield
    except RunnerError as error:
        raise type(error)(f"{_where(attempt)}, runner {runner!r}: {error}") from error


def _where(attempt: Attempt) -> str:
    return f"step {address(attempt.step)} ({attempt.folder.url})"


def _with_environment(request: Request, provenance: Provenance) -> Request:
    """Add the environment variables that functions read, as Marin's clients do: the prefix, for
    output paths, and the provenance, for records that they write themselves."""
    environment = {PROVENANCE_VARIABLE: provenance.to_json()}
    if PREFIX_VARIABLE in os.environ:
        environment[PREFIX_VARIABLE] = output_prefix(None)
    return replace(request, env_vars={**environment, **request.env_vars})


def _wait(job: Job, attempt: Attempt, callbacks: DriverCallbacks) -> None:
    """Wait for the end. Cancel the job if the step must stop; leave it for the next attempt if the
    engine does not answer."""
    logged_at = float("-inf")
    try:
        while not job.wait(_LOOK_S).state.final:
            callbacks.check()
            if attempt.lost is not None:
                raise attempt.lost
            if job.trouble is None:
                continue
            since, error = job.trouble
            silent_s = time.monotonic() - since
            if silent_s > UNREACHABLE_S:
                raise EngineError(
                    f"job {job.label}: its engine did not answer for {UNREACHABLE_S:.0f} s: "
                    f"{error}. If the job still exists, the next attempt attaches to it."
                )
            if silent_s > _LOG_TROUBLE_S and since > logged_at:
                logged_at = since
                callbacks.log(f"the engine does not answer; polling continues: {error}")
        callbacks.check()
    except EngineError:
        raise
    except BaseException:
        if not job.status.state.final:
            _stop(job, attempt)
        raise


def _stop(job: Job, attempt: Attempt) -> None:
    """Cancel the job, unless another driver has taken the lease and attached to it."""
    job_file = None
    try:
        job_file = read_job_file(attempt.folder)
        if job_file is not None and job_file.owner != attempt.worker_id:
            return
    except StoreError:
        logger.exception("could not read the owner of job %s", job.label)
    _cancel(job)
    if job_file is not None and not job.status.state.final:
        try:
            write_job_file(attempt, replace(job_file, cancelled=True))
        except StoreError:
            logger.exception("could not record that job %s was cancelled", job.label)


def _cancel(job: Job) -> None:
    """Cancel the job and wait up to a minute for its end; an error is logged."""
    try:
        job.cancel()
    except Exception:
        logger.exception("could not cancel job %s", job.label)
        return
    give_up_at = time.monotonic() + _CANCEL_S
    while time.monotonic() < give_up_at and not job.wait(_LOOK_S).state.final:
        pass


def _judge(job: Job, attempt: Attempt) -> None:
    """Raise an error for a job that has not succeeded."""
    where, status = f"step {address(attempt.step)}, job {job.label}", job.status
    if status.state is JobState.SUCCEEDED:
        # The record of an output that was finished before is not this job's.
        if attempt.still_stands() or read_record(attempt.folder) is None:
            raise JobFailedError(
                f"{where}: succeeded, but no record of it is in {attempt.folder.url}. Make sure "
                "that the engine's workers see this store."
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
