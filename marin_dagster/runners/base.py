"""``Runner`` and ``Job``: the protocol of every engine that can run a step's function.

A runner submits a ``StepCall`` as a job of its engine, and finds a job by its name. A job has a
status and a log, and can be cancelled. The rest (leases, the meaning of an outcome, when to cancel)
is in ``driver``, for all engines.
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
    """A job's state. The last four are final."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It ended with an error: an exit code, a signal, out of memory."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """The engine stopped or lost it: preempted, node failed, forgotten."""

    @property
    def final(self) -> bool:
        """Whether the job has ended."""
        return self not in (JobState.PENDING, JobState.RUNNING)

    @property
    def failed(self) -> bool:
        """Whether the job has ended without success."""
        return self.final and self is not JobState.SUCCEEDED


PROCESS_ENGINE = "process"
"""The engine whose jobs end with the process that submitted them."""


@dataclass(frozen=True)
class JobStatus:
    """A job's status on its engine."""

    state: JobState
    reason: str = ""
    """Why it ended, for people: ``signal 11 (SIGSEGV)``, ``out of memory``, ``preempted``."""


@dataclass(frozen=True)
class Request:
    """What a step asks of its runner."""

    resources: Any = None
    """A ``ResourceConfig``, ours or Fray's; None if the step has none."""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the job, in addition to the runner's."""
    pip_dependency_groups: Sequence[str] | None = None
    """Dependency groups of the workspace to install for the job."""
    pip_packages: Sequence[str] | None = None
    """Further packages to install for the job."""
    name: str | None = None
    """The job's name; the step's name if None."""

    @classmethod
    def of(cls, step: StepLike) -> "Request":
        """A step's request.

        The step's resources override its :class:`RemoteCallable`'s, as in Marin. The wrapper's
        environment and packages always apply (Marin drops them if both have resources).
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
    """One job of an engine. Subclasses read its log and cancel it.

    The runner calls :meth:`report` when the status changes, from any thread.
    """

    name: str
    """The name for :meth:`Runner.attach`."""
    id: str = ""
    """The engine's id, for people who look for the job there; the name if empty."""
    url: str | None = None
    """Its page in the engine's UI, if there is one."""
    _status: JobStatus = field(default=JobStatus(JobState.PENDING), init=False)
    _trouble: tuple[float, str] | None = field(default=None, init=False)
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _woken: bool = field(default=False, init=False)

    def logs(self) -> Iterator[tuple[str, str]]:
        """Pieces of ``("stdout" | "stderr", text)``, as the job writes them.

        Ends when the job has ended and its whole output has been yielded. May block, and may raise:
        only the log depends on it.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """Ask the engine to stop the job with its child processes. May be called twice.

        Raises:
            EngineError: the engine does not answer.
        """
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The job's name in messages."""
        return self.id or self.name

    @property
    def status(self) -> JobStatus:
        """The last status that was reported."""
        return self._status

    @property
    def trouble(self) -> tuple[float, str] | None:
        """Since when the engine does not answer, in seconds of ``time.monotonic()``, and the last
        error; None while it answers."""
        return self._trouble

    def report(self, status: JobStatus) -> None:
        """Set the status that the engine has answered; ignored after a final state."""
        with self._changed:
            self._trouble = None
            if not self._status.state.final and status != self._status:
                self._status = status
                self._changed.notify_all()

    def report_trouble(self, error: str) -> None:
        """Note that the engine did not answer; the job may still run."""
        with self._changed:
            since = self._trouble[0] if self._trouble else time.monotonic()
            self._trouble = (since, error)

    def wait(self, timeout_s: float) -> JobStatus:
        """Wait until the job has ended, :meth:`wake` is called, or ``timeout_s`` seconds are over.
        Returns the status."""
        with self._changed:
            self._changed.wait_for(lambda: self._status.state.final or self._woken, timeout_s)
            self._woken = False
            return self._status

    def wake(self) -> None:
        """Make the current :meth:`wait`, or else the next one, return at once."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()


class Runner(Protocol):
    """Runs steps as jobs of one engine. Its methods are called from many threads."""

    @property
    def name(self) -> str:
        """The runner's name in the executor's config."""
        ...

    @property
    def engine(self) -> str:
        """The engine's identity, so that no job is looked up on another engine with this name.

        Raises:
            EngineError: the identity comes from the engine, which does not answer.
        """
        ...

    def refuses(self, step: StepLike, request: Request) -> str | None:
        """Why this runner cannot run the step, naming the resource; None if it can.

        Called before any step of the run is submitted; sends no request to the engine.
        """
        ...

    def submit(self, name: str, call: StepCall, request: Request) -> Job:
        """Submit a job under a name that is unique for each attempt.

        Raises:
            EngineError: the engine refuses the job or is unreachable; nothing runs.
            EngineTimeoutError: the engine did not answer; the job may run.
        """
        ...

    def attach(self, name: str) -> Job | None:
        """The job of that name, running or ended; None if the engine does not know it.

        Raises:
            EngineError: the engine does not answer.
        """
        ...

    def close(self) -> None:
        """Free this process's resources at the end of a run. Jobs of an engine outside this process
        go on."""
        ...


def job_name(step: StepLike, request: Request, attempt_id: str) -> str:
    """A job's name: the name of the step or its wrapper, cleaned and in lower case, the step's hash
    and the attempt's id.

    At most 63 characters: a long name is cut. Mirrors Marin's names, which end in random digits.
    """
    ending = f"-{step.hash_id}-{attempt_id}"
    cleaned = re.sub(r"[^a-z0-9]+", "-", (request.name or step.name).lower()).strip("-")
    return cleaned[: JOB_NAME_LENGTH - len(ending)].strip("-") + ending


def describe_exit(code: int) -> str:
    """An exit code in words; negative for a signal, as in ``subprocess``."""
    if code > 128:
        code = 128 - code  # a shell's exit code for a signal
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
    hint = "; the machine may have run out of memory" if -code == signal.SIGKILL else ""
    return f"signal {-code} ({name}){hint}"
