"""``FrayEngine``: what ``FrayRunner`` needs of an engine, and how any Fray client provides it.

``iris_engine`` has the one for Iris.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from marin_dagster.errors import EngineError
from marin_dagster.runners.base import Job, JobState, JobStatus
from marin_dagster.runners.payload import run_packed
from marin_dagster.runners.polling import Poller

_LOG_PAUSE_S = 0.25


class FrayEngine(Protocol):
    """One engine, through one client."""

    @property
    def poller(self) -> "Poller[FrayJob]":
        """Watches the jobs."""
        ...

    @property
    def entry(self) -> Callable[[bytes], None]:
        """The function that a job calls with the packed step."""
        ...

    def submit(self, request: Any) -> "FrayJob":
        """Submit a Fray ``JobRequest``."""
        ...

    def find(self, name: str) -> "FrayJob | None":
        """The job of that name; None if the engine does not know it."""
        ...

    def ask(self, jobs: "Sequence[FrayJob]") -> Mapping[str, JobStatus]:
        """The status of each job that the engine knows, by name."""
        ...

    def logs(self, job: "FrayJob") -> Iterator[tuple[str, str]]:
        """See :meth:`Job.logs`."""
        ...

    def cancel(self, job: "FrayJob") -> None:
        """Stop a job.

        Raises:
            EngineError: the engine does not answer.
        """
        ...


@dataclass(eq=False, kw_only=True)
class FrayJob(Job):
    """A job that was submitted through Fray."""

    engine: FrayEngine
    handle: Any = None
    """Fray's handle; None on Iris, which needs only the id."""
    ranks: int = 1
    """The number of replicas. If there are several, each line of the log begins with its rank."""

    def logs(self) -> Iterator[tuple[str, str]]:
        """The job's output, line by line, at most about two seconds late.

        Raises:
            Exception: the job has ended and its log cannot be read.
        """
        return self.engine.logs(self)

    def cancel(self) -> None:
        """Stop the job.

        Raises:
            EngineError: the engine does not answer.
        """
        self.engine.cancel(self)
        self.engine.poller.hurry()


class FrayClientEngine:
    """Any Fray client, through Fray's public interface. It has no deadlines."""

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
        # Fray's interface cannot find jobs that another process has submitted.
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
            ended = job.status.state.final
            lines = job.handle.logs()
            for line in lines[given:]:
                yield "stdout", f"{line}\n"
            given = len(lines)
            if ended:
                return
            time.sleep(_LOG_PAUSE_S)

    def cancel(self, job: FrayJob) -> None:
        try:
            job.handle.terminate()
        except Exception as error:
            raise EngineError(f"job {job.id} cannot be cancelled: {error}") from error
