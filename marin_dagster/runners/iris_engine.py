"""``IrisEngine``: jobs of an Iris controller, their states and their logs."""

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from marin_dagster.errors import EngineError
from marin_dagster.runners.base import JobState, JobStatus, describe_exit
from marin_dagster.runners.fray_engine import FrayJob
from marin_dagster.runners.iris_compat import IrisController, iris_client
from marin_dagster.runners.payload import run_packed
from marin_dagster.runners.polling import Poller

_LOG_PAUSE_S = 0.25
_LOG_DELAY_S = 2.5
"""How late a line may reach Iris's log store: workers send their lines every second."""
_LAST_LINE = "(end of the step's output)"
_DYING_S = 10.0
"""How long a stopped job may take to die on its worker."""


def run_task(packed: bytes) -> None:
    """The function of an Iris task: run the call, then write a last line to each stream.

    Lines can reach Iris's log store after the job has its final state; the last lines mark the end
    of the log. A failed call writes none: Iris reports the last line of stderr as the reason.
    """
    run_packed(packed)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the function may have closed it
            print(_LAST_LINE, file=stream, flush=True)


class IrisEngine:
    """One Iris controller."""

    def __init__(self, client: Any) -> None:
        self._iris = IrisController(client)
        # Kept alive, since its identity is this engine's key in the runner.
        self._original = iris_client(client)
        self.poller: Poller[FrayJob] = Poller(self.ask, "iris")
        self.entry = run_task

    def submit(self, request: Any) -> FrayJob:
        return self._job(request.name, self._iris.submit(request), request.replicas)

    def find(self, name: str) -> FrayJob | None:
        # By name alone: another user or another Iris job may have submitted it.
        for job in self._iris.list_jobs(name):
            if job.job_id.rpartition("/")[2] == name:
                return self._job(name, job.job_id, job.task_count)
        return None

    def ask(self, jobs: Sequence[FrayJob]) -> Mapping[str, JobStatus]:
        states = self._iris.job_states(job.id for job in jobs)
        return {job.name: self._status(job.id, states[job.id]) for job in jobs if job.id in states}

    def logs(self, job: FrayJob) -> Iterator[tuple[str, str]]:
        cursor, open_streams, ended_at = 0, 2 * job.ranks, None
        while True:
            overdue = ended_at is not None and time.monotonic() - ended_at > _LOG_DELAY_S
            entries: Sequence[Any] = ()
            try:
                entries, cursor = self._iris.fetch_logs(job.id, cursor)
            except Exception:
                if overdue:
                    raise
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
                if overdue or (ended_at is not None and open_streams <= 0):
                    return
                time.sleep(_LOG_PAUSE_S)

    def cancel(self, job: FrayJob) -> None:
        try:
            self._iris.terminate(job.id)
        except Exception as error:
            raise EngineError(f"Iris cannot cancel job {job.id}: {error}") from error

    def _job(self, name: str, job_id: str, ranks: int) -> FrayJob:
        return FrayJob(
            name=name, id=job_id, url=self._iris.page_url(job_id), engine=self, ranks=ranks
        )

    def _status(self, job_id: str, state: int) -> JobStatus:
        states = self._iris.states
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
        job, tasks = self._iris.job(job_id), self._iris.tasks(job_id)
        if _is_dying(job, tasks):
            return JobStatus(JobState.RUNNING)
        failed = [task for task in tasks if task.state == states.TASK_STATE_FAILED]
        if failed and stopped[state] is JobState.FAILED:
            rank = f"rank {failed[0].task_id.rpartition('/')[2]}: " if len(tasks) > 1 else ""
            return JobStatus(JobState.FAILED, rank + why_failed(failed[0]))
        losses = {
            states.TASK_STATE_PREEMPTED: "preempted",
            states.TASK_STATE_WORKER_FAILED: "its worker failed",
            states.TASK_STATE_MISSING: "its worker lost it",
        }
        lost = [task for task in tasks if task.state in losses]
        if lost and stopped[state] is not JobState.CANCELLED:
            reason = f"{losses[lost[0].state]}: {lost[0].error}".removesuffix(": ")
            return JobStatus(JobState.LOST, reason)
        return JobStatus(stopped[state], job.error)


def _is_dying(job: Any, tasks: Sequence[Any]) -> bool:
    """Whether a worker has not yet reported the end of its part of a stopped job."""
    # Iris reports KILLED at once; the worker follows when its process is dead, unless it is gone.
    age_s = time.time() - job.finished_at.epoch_ms / 1000
    return abs(age_s) < _DYING_S and any(
        attempt.HasField("started_at") and not attempt.HasField("finished_at")
        for task in tasks
        for attempt in task.attempts
    )


def why_failed(task: Any) -> str:
    """The reason of a task's failure, for people."""
    error: str = task.error
    if re.search(r"OOM ?killed|out of memory", error, re.IGNORECASE):
        return "out of memory"
    # -1: Iris does not know the exit code.
    if task.exit_code in (0, -1):
        return error
    last_line = error.partition("stderr: ")[2]
    return describe_exit(task.exit_code) + (f": {last_line}" if last_line else "")
