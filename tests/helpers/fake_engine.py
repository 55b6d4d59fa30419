"""An engine whose jobs do what the test asks for: for what no real one does on demand."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from marin_dagster.cache import OutputDir
from marin_dagster.cache.record import write_record
from marin_dagster.errors import EngineError
from marin_dagster.runners import Job, JobState, JobStatus, Request, StepCall
from marin_dagster.runners.payload import withdraw
from marin_dagster.steps import StepLike


@dataclass(eq=False)
class FakeJob(Job):
    """A job in the test's hand."""

    call: StepCall | None = None
    cancels: int = 0
    obeys: bool = True
    """Whether it ends when it is cancelled."""
    log: Callable[[], Iterator[tuple[str, str]]] = lambda: iter(())

    def logs(self) -> Iterator[tuple[str, str]]:
        return self.log()

    def cancel(self) -> None:
        self.cancels += 1
        if self.obeys:
            self.report(JobStatus(JobState.CANCELLED))

    def become(self, state: JobState, reason: str = "") -> None:
        """Be in a state."""
        self.report(JobStatus(state, reason))

    def begin(self) -> None:
        """Begin the function, as a worker does."""
        assert self.call is not None
        if self.call.rebuilds:
            withdraw(OutputDir.at(self.call.output_path))
        self.become(JobState.RUNNING)

    def succeed(self) -> None:
        """End well: the record is written."""
        self.begin()
        assert self.call is not None
        if self.call.record is not None:
            write_record(OutputDir.at(self.call.output_path), self.call.record)
        self.become(JobState.SUCCEEDED)


@dataclass(eq=False)
class FakeRunner:
    """Remembers what it was given."""

    name: str = "engine"
    jobs: dict[str, FakeJob] = field(default_factory=dict)
    prepare: Callable[[FakeJob], None] = lambda job: None
    """Done to each job before it is handed out."""
    away: str = ""
    """The error that it raises instead of answering."""
    engine: str = "fake"
    submitted: threading.Event = field(default_factory=threading.Event)

    def refuses(self, step: StepLike, request: Request) -> str | None:
        return None

    def submit(self, name: str, call: StepCall, request: Request) -> FakeJob:
        if self.away:
            raise EngineError(self.away)
        job = FakeJob(name, call=call)
        self.prepare(job)
        self.jobs[name] = job
        self.submitted.set()
        return job

    def attach(self, name: str) -> FakeJob | None:
        if self.away:
            raise EngineError(self.away)
        return self.jobs.get(name)

    def close(self) -> None:
        """Nothing to free."""
