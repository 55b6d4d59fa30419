"""``Poller``: one thread that polls the status of all jobs of a runner."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from marin_dagster.runners.base import Job, JobState, JobStatus

logger = logging.getLogger(__name__)

J = TypeVar("J", bound=Job)

_FIRST_PAUSE_S = 0.1
_GROWTH = 1.1
_LONGEST_PAUSE_S = 2.0
_UNKNOWN_S = 30.0


@dataclass(eq=False)
class Poller(Generic[J]):
    """Polls jobs until they have ended. The thread runs while there are such jobs.

    It polls every 0.1 seconds at first, and less often while nothing changes, down to every 2
    seconds.
    """

    ask: Callable[[Sequence[J]], Mapping[str, JobStatus]]
    """Returns the status of each job that the engine knows, by job name, with one request if
    possible. Has its own deadline, and raises if the engine does not answer."""
    engine: str
    """For messages."""
    _jobs: dict[J, float] = field(default_factory=dict)
    """When the engine last knew each job, in seconds of ``time.monotonic()``."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _pause_s: float = _FIRST_PAUSE_S

    def watch(self, job: J) -> None:
        """Poll the job and report its status to it, until it has ended."""
        with self._changed:
            self._jobs[job] = time.monotonic()
            self.hurry()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"marin-poll-{self.engine}", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Stop polling; jobs go on."""
        with self._changed:
            self._jobs.clear()
            self._changed.notify()

    def hurry(self) -> None:
        """Poll soon: a status is about to change."""
        with self._changed:
            self._pause_s = _FIRST_PAUSE_S
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait(self._pause_s)
                self._jobs = {
                    job: seen for job, seen in self._jobs.items() if not job.status.state.final
                }
                if not self._jobs:
                    self._thread = None
                    return
                jobs = list(self._jobs)
                self._pause_s = min(self._pause_s * _GROWTH, _LONGEST_PAUSE_S)
            self._ask(jobs)

    def _ask(self, jobs: Sequence[J]) -> None:
        try:
            answers = self.ask(jobs)
        except Exception as error:
            logger.debug("%s does not answer", self.engine, exc_info=True)
            for job in jobs:
                # No answer does not mean that the engine has forgotten the job.
                self._seen(job)
                job.report_trouble(f"{type(error).__name__}: {error}")
            return
        for job in jobs:
            status = answers.get(job.name)
            if status is not None:
                self._seen(job)
                if status != job.status:
                    self.hurry()
            elif time.monotonic() - self._jobs.get(job, math.inf) > _UNKNOWN_S:
                # Not at once: some engines list a new job after a delay.
                status = JobStatus(JobState.LOST, f"{self.engine} no longer knows the job")
            if status is not None:
                job.report(status)

    def _seen(self, job: J) -> None:
        with self._changed:
            if job in self._jobs:
                self._jobs[job] = time.monotonic()
