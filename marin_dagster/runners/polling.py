"""``Poller``: one thread that asks an engine about all of a runner's jobs at once."""

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
    """Watches jobs until they have ended. The thread lives while there is something to watch.

    It asks every 0.1 seconds at first and less often while nothing changes, at least every 2.
    """

    ask: Callable[[Sequence[J]], Mapping[str, JobStatus]]
    """What the engine says about these jobs, by job name, in one request where that is possible;
    without those it does not know. Has a deadline of its own, and raises when the engine does not
    answer."""
    engine: str
    """For messages."""
    _jobs: dict[J, float] = field(default_factory=dict)
    """Each job, and when the engine last knew it, in seconds of ``time.monotonic()``."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _pause_s: float = _FIRST_PAUSE_S

    def watch(self, job: J) -> None:
        """Report the job's status to it from now on, until it has ended."""
        with self._changed:
            self._jobs[job] = time.monotonic()
            self.hurry()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"marin-poll-{self.engine}", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Watch nothing any more; jobs go on."""
        with self._changed:
            self._jobs.clear()
            self._changed.notify()

    def hurry(self) -> None:
        """Ask soon: something is about to change."""
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
                # An engine that does not answer has not said that it does not know the job.
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
                # Not at once: some engines take a while to list what they have accepted.
                status = JobStatus(JobState.LOST, f"{self.engine} no longer knows the job")
            if status is not None:
                job.report(status)

    def _seen(self, job: J) -> None:
        with self._changed:
            if job in self._jobs:
                self._jobs[job] = time.monotonic()
