"""Fray's clients, as the runner sees them: :class:`IrisEngine` and :class:`OtherEngine`.

Submission goes through Fray's client, as Marin's own does. On Iris, everything after that goes
straight to the controller's RPC stub, one request for all jobs: Fray's handle folds a preemption
into a failure, and its calls try a dead controller again for half an hour.
"""

import copy
import importlib
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from marin_dagster.errors import EngineError, EngineTimeoutError, RoutingError
from marin_dagster.runners.base import Job, JobState, JobStatus, describe_exit
from marin_dagster.runners.payload import run_packed
from marin_dagster.runners.polling import Poller

_ASK_S = 10.0
"""Longest time for one answer of the controller."""
_SUBMIT_S = 60.0
"""The same for a submission, which may carry the workspace."""
_PATIENCE_S = 10.0
"""Seconds for which a submission is tried again while the controller does not answer."""
_LOG_PAUSE_S = 0.25
_LOG_DELAY_S = 2.5
"""Seconds that a line may take to Iris's log store: its workers send what they have each second."""
_LAST_LINE = "(end of the step's output)"
_DYING_S = 10.0
"""Seconds for which a job that Iris has stopped may still be dying on its worker."""


@dataclass(eq=False, kw_only=True)
class FrayJob(Job):
    """A job that was submitted through Fray."""

    engine: "IrisEngine | OtherEngine"
    """Asks the client about it."""
    handle: Any = None
    """Fray's handle; None on Iris, where the id is enough."""
    ranks: int = 1
    """How many replicas there are; each line of the log tells its own when there are several."""

    def logs(self) -> Iterator[tuple[str, str]]:
        """The job's output, line by line and at most some two seconds late.

        Raises:
            Exception: the job has ended and the log cannot be read.
        """
        return self.engine.logs(self)

    def cancel(self) -> None:
        """Stop the job.

        Raises:
            EngineError: the client does not reach its engine.
        """
        self.engine.cancel(self)
        self.engine.poller.hurry()


def run_task(packed: bytes) -> None:
    """What a task of Iris runs: the call, and then a last line on each stream.

    Lines reach Iris's log store after the news of the end; these two tell when all are there. Not
    when the call fails: Iris gives the last line of stderr as the reason.
    """
    run_packed(packed)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the function may have closed it
            print(_LAST_LINE, file=stream, flush=True)


class IrisEngine:
    """Everything that the runner asks of one Iris controller."""

    def __init__(self, client: Any) -> None:
        # The caller's client stays as it is: what is changed below are copies.
        self._client, self._cluster = copy.copy(client), copy.copy(client._iris._cluster_client)
        self._client._iris = copy.copy(client._iris)
        self._client._iris._cluster_client = self._cluster
        self._stub = self._cluster._client
        self._cluster._client = _ImpatientStub(self._stub)
        self._original = client._iris  # kept alive: its identity is the key of this engine
        self._messages = fray_module("iris.rpc.controller_pb2").Controller
        self._states = fray_module("iris.rpc.job_pb2")
        self.poller: Poller[FrayJob] = Poller(self.ask, "iris")
        self.entry = run_task

    def submit(self, request: Any) -> FrayJob:
        handle = self._client.submit(request, adopt_existing=False)
        return self._job(request.name, handle.job_id, request.replicas)

    def find(self, name: str) -> FrayJob | None:
        # By name alone: its driver may have been another user, or another job of Iris.
        query = self._messages.JobQuery(name_filter=name)
        request = self._messages.ListJobsRequest(query=query)
        for job in self._stub.list_jobs(request, timeout_ms=_ms(_ASK_S)).jobs:
            if job.job_id.rpartition("/")[2] == name:
                return self._job(name, job.job_id, job.task_count)
        return None

    def ask(self, jobs: Sequence[FrayJob]) -> Mapping[str, JobStatus]:
        request = self._messages.GetJobStateRequest(job_ids=[job.id for job in jobs])
        states = self._stub.get_job_state(request, timeout_ms=_ms(_ASK_S)).states
        return {job.name: self._status(job.id, states[job.id]) for job in jobs if job.id in states}

    def logs(self, job: FrayJob) -> Iterator[tuple[str, str]]:
        messages = fray_module("finelog.rpc.logging_pb2")
        cursor, open_streams, ended_at = 0, 2 * job.ranks, None
        while True:
            request = messages.FetchLogsRequest(
                source=f"{job.id}/", match_scope=messages.MATCH_SCOPE_PREFIX, cursor=cursor
            )
            over = ended_at is not None and time.monotonic() - ended_at > _LOG_DELAY_S
            try:
                # Not through the cluster client, which would try for half an hour.
                page = self._cluster._log_client.fetch_logs(request)
            except Exception:
                if over:
                    raise
                entries = []
            else:
                entries, cursor = page.entries, max(cursor, page.cursor)
            for entry in entries:
                text = entry.data.removesuffix(_LAST_LINE)
                open_streams -= text != entry.data
                if not text and entry.data:
                    continue
                rank = f"[{entry.key.partition(':')[0].rpartition('/')[2]}] "
                stream = "stdout" if entry.source == "stdout" else "stderr"
                yield stream, f"{rank if job.ranks > 1 else ''}{text}\n"
            if ended_at is None and job.status.state.final:
                ended_at = time.monotonic()
            if not entries:
                if over or (ended_at is not None and open_streams <= 0):
                    return
                time.sleep(_LOG_PAUSE_S)

    def cancel(self, job: FrayJob) -> None:
        request = self._messages.TerminateJobRequest(job_id=job.id)
        try:
            self._stub.terminate_job(request, timeout_ms=_ms(_ASK_S))
        except Exception as error:
            if not _is(error, "NOT_FOUND"):
                raise EngineError(f"Iris does not cancel job {job.id}: {error}") from error

    def _job(self, name: str, wire: str, ranks: int) -> FrayJob:
        names = fray_module("iris.cluster.types").JobName
        url = names.from_wire(wire).dashboard_url(self._cluster._address)
        return FrayJob(name=name, id=wire, url=url, engine=self, ranks=ranks)

    def _status(self, wire: str, state: int) -> JobStatus:
        states = self._states
        if state == states.JOB_STATE_SUCCEEDED:
            return JobStatus(JobState.SUCCEEDED)
        if state == states.JOB_STATE_RUNNING:
            return JobStatus(JobState.RUNNING)
        stopped = {
            states.JOB_STATE_KILLED: JobState.CANCELLED,
            states.JOB_STATE_WORKER_FAILED: JobState.LOST,
            states.JOB_STATE_FAILED: JobState.FAILED,
            states.JOB_STATE_UNSCHEDULABLE: JobState.FAILED,
        }
        if state not in stopped:
            return JobStatus(JobState.PENDING)
        timeout_ms = _ms(_ASK_S)
        asked = self._messages.GetJobStatusRequest(job_id=wire)
        job = self._stub.get_job_status(asked, timeout_ms=timeout_ms).job
        listed = self._messages.ListTasksRequest(job_id=wire)
        tasks = self._stub.list_tasks(listed, timeout_ms=timeout_ms).tasks
        if _is_dying(job, tasks):
            return JobStatus(JobState.RUNNING)
        failed = [task for task in tasks if task.state == states.TASK_STATE_FAILED]
        if failed and stopped[state] is JobState.FAILED:
            rank = f"rank {failed[0].task_id.rpartition('/')[2]}: " if len(tasks) > 1 else ""
            return JobStatus(JobState.FAILED, rank + why_failed(failed[0]))
        taken = {
            states.TASK_STATE_PREEMPTED: "preempted",
            states.TASK_STATE_WORKER_FAILED: "its worker failed",
            states.TASK_STATE_MISSING: "its worker lost it",
        }
        lost = [task for task in tasks if task.state in taken]
        if lost and stopped[state] is not JobState.CANCELLED:
            reason = f"{taken[lost[0].state]}: {lost[0].error}".removesuffix(": ")
            return JobStatus(JobState.LOST, reason)
        return JobStatus(stopped[state], job.error)


class OtherEngine:
    """Any other client, through what Fray's protocol has. It knows no deadlines."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._jobs: dict[str, FrayJob] = {}
        self.poller: Poller[FrayJob] = Poller(self.ask, "fray")
        self.entry = run_packed

    def submit(self, request: Any) -> FrayJob:
        handle = self._client.submit(request, adopt_existing=False)
        job = FrayJob(name=request.name, id=handle.job_id, engine=self, handle=handle)
        self._jobs[request.name] = job
        return job

    def find(self, name: str) -> FrayJob | None:
        # Fray's clients have no way to ask for a job that another process has submitted.
        return self._jobs.get(name)

    def ask(self, jobs: Sequence[FrayJob]) -> Mapping[str, JobStatus]:
        states = {"stopped": JobState.CANCELLED}
        statuses = {job.name: str(job.handle.status()) for job in jobs}
        return {
            name: JobStatus(states.get(status) or JobState(status))
            for name, status in statuses.items()
        }

    def logs(self, job: FrayJob) -> Iterator[tuple[str, str]]:
        given = 0
        while True:
            over = job.status.state.final
            lines = job.handle.logs()
            for line in lines[given:]:
                yield "stdout", f"{line}\n"
            given = len(lines)
            if over:
                return
            time.sleep(_LOG_PAUSE_S)

    def cancel(self, job: FrayJob) -> None:
        try:
            job.handle.terminate()
        except Exception as error:
            raise EngineError(f"job {job.id} cannot be cancelled: {error}") from error


@dataclass(frozen=True)
class _ImpatientStub:
    """The controller's RPC stub with a submission that gives up within a minute or so."""

    stub: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stub, name)

    def launch_job(self, request: Any, timeout_ms: int | None = None) -> Any:
        """Launch the job of a name that is new.

        Raises:
            EngineTimeoutError: no answer. It is no RPC error, which the caller would take for a
                reason to try again.
        """
        messages = fray_module("iris.rpc.controller_pb2").Controller
        retryable = fray_module("iris.rpc.errors").is_retryable_error
        give_up_at, sent = time.monotonic() + _PATIENCE_S, False
        while True:
            try:
                return self.stub.launch_job(request, timeout_ms=_ms(_SUBMIT_S))
            except Exception as error:
                if sent and _is(error, "ALREADY_EXISTS"):
                    # Names are unique: the request before this one had arrived.
                    return messages.LaunchJobResponse(job_id=request.name)
                if not retryable(error):
                    raise
                if time.monotonic() > give_up_at:
                    self._withdraw(messages.TerminateJobRequest(job_id=request.name))
                    raise EngineTimeoutError(
                        f"the Iris controller does not answer: {error}"
                    ) from error
            sent = True
            time.sleep(0.5)

    def _withdraw(self, request: Any) -> None:
        # The last request may have arrived although no answer came.
        with suppress(Exception):
            self.stub.terminate_job(request, timeout_ms=_ms(_ASK_S))


def fray_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RoutingError(
            f"the fray runner needs {name} ({error}). Install marin-dagster[fray], which needs "
            "Python 3.12 or newer"
        ) from error


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _is(error: Exception, code: str) -> bool:
    """Whether an RPC was answered with this code."""
    return getattr(getattr(error, "code", None), "name", None) == code


def _is_dying(job: Any, tasks: Sequence[Any]) -> bool:
    """Whether a worker has yet to say that it has stopped its part of a job that was stopped."""
    # Iris says KILLED at once. The worker tells when its process is dead, unless it is gone itself.
    age_s = time.time() - job.finished_at.epoch_ms / 1000
    return abs(age_s) < _DYING_S and any(
        attempt.HasField("started_at") and not attempt.HasField("finished_at")
        for task in tasks
        for attempt in task.attempts
    )


def why_failed(task: Any) -> str:
    """Why a task failed, for people."""
    error: str = task.error
    if re.search(r"OOM ?killed|out of memory", error, re.IGNORECASE):
        return "out of memory"
    # Iris says -1 when it does not know.
    if task.exit_code in (0, -1):
        return error
    last_line = error.partition("stderr: ")[2]
    return describe_exit(task.exit_code) + (f": {last_line}" if last_line else "")
