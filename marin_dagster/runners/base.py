"""``Runner`` and ``Job``: one protocol for every engine that can run a step's function.

A runner submits a ``StepCall`` as a job of its engine, and finds a job again by its name. A job
tells its status and its log, and can be cancelled. Everything else (leases, what an outcome means,
when to cancel) is in ``driver``, the same for all engines.
"""

import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from marin_dagster.runners.payload import StepCall
from marin_dagster.steps import StepLike
from marin_dagster.steps.remote import is_remote, step_resources

JOB_NAME_LENGTH = 63
"""The longest job name that every engine accepts."""


class JobState(Enum):
    """Where a job stands. The last four are final."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It ended by itself, and not well: an exit code, a signal, out of memory."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """The engine took it away or lost sight of it: preempted, node gone, forgotten."""

    @property
    def final(self) -> bool:
        """Whether a job in this state stays in it."""
        return self not in (JobState.PENDING, JobState.RUNNING)

    @property
    def failed(self) -> bool:
        """Whether a job in this state will never have done its work."""
        return self.final and self is not JobState.SUCCEEDED


PROCESS_ENGINE = "process"
"""The engine whose jobs end with the process that submitted them."""


@dataclass(frozen=True)
class JobStatus:
    """What an engine says about a job."""

    state: JobState
    reason: str = ""
    """Why it ended so, for people: ``signal 11 (SIGSEGV)``, ``out of memory``, ``preempted``."""


@dataclass(frozen=True)
class Request:
    """What a step asks of the runner that takes it."""

    resources: Any = None
    """A ``ResourceConfig``, ours or Fray's; None when the step states none."""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    """Environment of the job, beside the runner's own."""
    pip_dependency_groups: Sequence[str] | None = None
    """Dependency groups of the workspace to install for the job."""
    pip_packages: Sequence[str] | None = None
    """Further packages to install for the job."""
    name: str | None = None
    """What the job should be called; the step's name when None."""

    @classmethod
    def of(cls, step: StepLike) -> "Request":
        """The request in a step.

        Its own resources come before its :class:`RemoteCallable`'s, as in Marin; the wrapper's
        environment and packages count in any case (Marin drops them when both are given).
        """
        resources = step_resources(step)
        if not is_remote(step.fn):
            return cls(resources)
        wrapper: Any = step.fn
        return cls(
            resources,
            env_vars=dict(wrapper.env_vars or {}),
            pip_dependency_groups=wrapper.pip_dependency_groups,
            pip_packages=wrapper.pip_packages,
            name=wrapper.name,
        )


@dataclass(eq=False)
class Job:
    """One job of an engine. A subclass says how to read its log and how to cancel it.

    Whoever learns of a change calls :meth:`report`, from any thread.
    """

    name: str
    """Under which :meth:`Runner.attach` finds it again."""
    id: str = ""
    """What the engine calls it, for people who look for it there; the name when empty."""
    url: str | None = None
    """Its page in the engine's UI, when there is one."""
    _status: JobStatus = field(default=JobStatus(JobState.PENDING), init=False)
    _trouble: tuple[float, str] | None = field(default=None, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _woken: bool = field(default=False, init=False)

    def logs(self) -> Iterator[tuple[str, str]]:
        """Pieces of ``("stdout" | "stderr", text)``, as the job writes them.

        Ends when the job has ended and all that it wrote has been given. May block, and may raise;
        nothing but the log depends on it.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """Ask the engine to stop the job, child processes included. Twice does no harm.

        Raises:
            EngineError: the engine does not answer.
        """
        raise NotImplementedError

    @property
    def label(self) -> str:
        """What people should call it."""
        return self.id or self.name

    @property
    def status(self) -> JobStatus:
        """What is known now."""
        return self._status

    @property
    def trouble(self) -> tuple[float, str] | None:
        """Since when, in seconds of ``time.monotonic()``, the engine does not answer, and what
        came instead; None while it answers."""
        return self._trouble

    def report(self, status: JobStatus) -> None:
        """The engine has answered. What comes after a final state is ignored."""
        with self._changed:
            self._trouble = None
            if not self._status.state.final and status != self._status:
                self._status = status
                self._changed.notify_all()

    def report_trouble(self, error: str) -> None:
        """The engine has not answered; the job may be well."""
        with self._changed:
            since = self._trouble[0] if self._trouble else time.monotonic()
            self._trouble = (since, error)

    def wait(self, timeout_s: float) -> JobStatus:
        """Wait until the job has ended, :meth:`wake` is called, or ``timeout_s`` seconds are over;
        the status then."""
        with self._changed:
            self._changed.wait_for(lambda: self._status.state.final or self._woken, timeout_s)
            self._woken = False
            return self._status

    def wake(self) -> None:
        """Make :meth:`wait` return now, or the next time at once."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()


class Runner(Protocol):
    """Runs steps as jobs of one engine. Its methods are called from many threads."""

    @property
    def name(self) -> str:
        """What the executor's config calls it."""
        ...

    @property
    def engine(self) -> str:
        """Which engine that is, so that a job is not looked for on another of the same name.

        Raises:
            EngineError: the engine must be asked for it, and does not answer.
        """
        ...

    def refuses(self, step: StepLike, request: Request) -> str | None:
        """Why this runner cannot run the step, naming the resource; None when it can.

        Asked before anything of the run is submitted; does not talk to the engine.
        """
        ...

    def submit(self, name: str, call: StepCall, request: Request) -> Job:
        """Start a job under a name that is unique for each attempt.

        Raises:
            EngineError: the engine refuses the job, or is not there. Nothing runs.
            EngineTimeoutError: the engine did not answer; whether the job runs is unknown.
        """
        ...

    def attach(self, name: str) -> Job | None:
        """The job of that name, running or ended; None when the engine knows none.

        Raises:
            EngineError: the engine does not answer.
        """
        ...

    def close(self) -> None:
        """The run is over: free what this process holds. Jobs that still run are not touched where
        the engine lives on without this process."""
        ...


def job_name(step: StepLike, request: Request, attempt_id: str) -> str:
    """A job's name: what the step or its wrapper is called, in lower case and cleaned, the step's
    hash, and what tells this attempt from every other.

    At most 63 characters, so a long name is cut. Mirrors Marin's, which has random digits only.
    """
    ending = f"-{step.hash_id}-{attempt_id}"
    cleaned = re.sub(r"[^a-z0-9]+", "-", (request.name or step.name).lower()).strip("-")
    return cleaned[: JOB_NAME_LENGTH - len(ending)].strip("-") + ending


def describe_exit(code: int) -> str:
    """An exit code as people know it; negative for a signal, as in ``subprocess``."""
    if code > 128:
        code = 128 - code  # what a shell makes of a signal
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
    hint = "; the machine may have run out of memory" if -code == signal.SIGKILL else ""
    return f"signal {-code} ({name}){hint}"
