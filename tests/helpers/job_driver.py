"""Driving steps through a runner without Dagster, as ``step_op`` does it.

Also a script: ``python driving.py ENGINE STEP FUNCTION`` drives one step until it is killed.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from helpers import step_functions
from helpers.processes import GUARD_S
from marin_dagster import ResourceConfig, StepSpec
from marin_dagster.assets.job_exceptions import DESCRIBERS
from marin_dagster.cache import Attempt, Hit, LeaseTiming, StepCache
from marin_dagster.runners import (
    DriverCallbacks,
    Job,
    Request,
    Routing,
    RoutingConfig,
    Runner,
    finish,
    read_job_file,
    reattach,
    submit,
)

NAME = "engine"
TIMING = LeaseTiming(refresh_s=0.5, stale_s=3.0, poll_s=0.1)


class Stopped(Exception):
    """What a stopped driver raises."""


@dataclass(frozen=True)
class Engine:
    """An engine under test."""

    kind: str
    """Type of runner."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=lambda: {"cpu": 1, "ram": "1g"})
    """What every step asks for."""
    slots: int = 0
    """Jobs that run at once, where further ones stay pending."""
    outlives_driver: bool = True
    """Whether a job goes on without the process that submitted it."""

    def runner(self) -> Runner:
        """A runner of its own, as a new run builds it."""
        routing = Routing(RoutingConfig(runners={NAME: {self.kind: dict(self.settings)}}))
        return routing.runners[NAME]

    def step(self, name: str, fn: Callable[[str], Any], **fields: Any) -> StepSpec:
        """A step that asks for what steps on this engine ask for."""
        return StepSpec(name, fn=fn, resources=ResourceConfig(**self.resources), **fields)


@dataclass(eq=False)
class Drive:
    """One step on its way through a runner, in a thread."""

    step: StepSpec
    runner: Runner
    force: bool = False
    job: Job | None = None
    error: BaseException | None = None
    logged: list[str] = field(default_factory=list)
    written: list[tuple[str, str]] = field(default_factory=list)
    attempt: Attempt | None = None
    log_levels: Mapping[str, int] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _wakers: list[Callable[[], None]] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def start(self) -> "Drive":
        """Begin, and go on in the background."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Interrupt the step, as a cancelled run does."""
        self._stop.set()
        for wake in list(self._wakers):
            wake()

    def end(self) -> "Drive":
        """Wait for the end, and raise what it raised."""
        assert self._thread is not None
        self._thread.join(GUARD_S)
        assert not self._thread.is_alive(), "the driver hangs"
        if self.error is not None:
            raise self.error
        return self

    def text(self, stream: str) -> str:
        """What the job wrote to stdout or stderr so far."""
        return "".join(text for name, text in list(self.written) if name == stream)

    def until(self, holds: Callable[[], Any]) -> None:
        """Wait until something holds while the step is on its way."""
        deadline = time.monotonic() + GUARD_S
        while not holds():
            assert self.error is None, self.error
            assert time.monotonic() < deadline, f"waited in vain; logged: {self.logged}"
            time.sleep(0.02)

    def _run(self) -> None:
        try:
            outcome = StepCache(TIMING).begin(self.step, force=self.force)
            if isinstance(outcome, Hit):
                return
            self.attempt = outcome
            try:
                self._build(outcome)
                outcome.commit()
            finally:
                outcome.fail()
        except BaseException as error:
            self.error = error

    def _build(self, attempt: Attempt) -> None:
        controls = DriverCallbacks(
            check=self._check,
            waking=self._waking,
            write=lambda stream, text: self.written.append((stream, text)),
            log=self.logged.append,
            describers=DESCRIBERS,
            log_levels=self.log_levels,
        )
        note = read_job_file(attempt.folder)
        if note is not None:
            self.job = reattach({NAME: self.runner}, note, attempt, controls)
        if self.job is None:
            self.job = submit(self.runner, attempt, Request.of(self.step), controls)
        finish(self.job, attempt, controls)

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped

    @contextmanager
    def _waking(self, wake: Callable[[], None]) -> Iterator[None]:
        self._wakers.append(wake)
        try:
            yield
        finally:
            self._wakers.remove(wake)


def main(engine: str, name: str, function: str) -> None:
    """Drive one step; whoever started this process kills it."""
    described = Engine(**json.loads(engine))
    step = described.step(name, getattr(step_functions, function))
    Drive(step, described.runner()).start().end()


if __name__ == "__main__":
    main(*sys.argv[1:])
