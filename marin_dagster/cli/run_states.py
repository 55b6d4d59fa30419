"""``RunStates``: the state of each step, by a run's events."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from marin_dagster.events.metadata_keys import CACHE, DURATION_S
from marin_dagster.steps import StepLike
from marin_dagster.steps.protocol import address

WAITING, RUNNING = "waiting", "running"
BUILT, CACHED, FAILED, STOPPED = "built", "cached", "failed", "stopped"
"""How a step ends; Ctrl-C stops it."""


@dataclass
class StepState:
    """One step of a run."""

    name: str
    """Its name with hash, or address."""
    state: str = WAITING
    began: float = 0.0
    """When it started, by the monotonic clock."""
    seconds: float | None = None
    """How long the build took."""
    error: str | None = None
    """Why it failed."""
    log: str | None = None
    """The local file of its stdout, if it has printed something."""


class RunStates:
    """The states of a run's steps. One thread may write while others read."""

    def __init__(self, steps: Mapping[str, StepLike]) -> None:
        """``steps``: by step key."""
        self.steps = {key: StepState(address(step)) for key, step in steps.items()}
        self.of_path = {step.output_path: self.steps[key] for key, step in steps.items()}
        self._mutex = threading.Lock()

    def state(self, path: str) -> str:
        """The state of the step with this output path."""
        return self.of_path[path].state

    def with_state(self, *states: str) -> list[StepState]:
        """The steps in some states, the longest running first."""
        with self._mutex:
            found = [one for one in self.steps.values() if one.state in states]
        return sorted(found, key=lambda one: one.began)

    def take(self, entry: dg.EventLogEntry, instance: dg.DagsterInstance) -> bool:
        """Take a record of the run's log into account; whether it ends or starts a step.

        Args:
            entry: the record.
            instance: where the run is recorded.
        """
        event = entry.dagster_event
        if event is None:
            return False
        if event.event_type_value == "LOGS_CAPTURED":
            self._find_log(event, entry.run_id, instance)
        step = self.steps.get(event.step_key or "")
        if step is None:
            return False
        with self._mutex:
            return _take(step, event)

    def _find_log(self, event: dg.DagsterEvent, run_id: str, instance: dg.DagsterInstance) -> None:
        data = event.logs_captured_data
        manager: Any = instance.compute_log_manager
        if not hasattr(manager, "get_captured_local_path"):
            return
        log_key = manager.build_log_key_for_run(run_id, data.file_key)
        for key in data.step_keys or ():
            if key in self.steps:
                self.steps[key].log = manager.get_captured_local_path(log_key, "out")


def _take(step: StepState, event: dg.DagsterEvent) -> bool:
    if event.is_step_start:
        step.state, step.began = RUNNING, time.monotonic()
    elif event.is_step_materialization:
        metadata = event.step_materialization_data.materialization.metadata
        how, seconds = metadata.get(CACHE), metadata.get(DURATION_S)
        if how is not None and how.value == "built":
            value = seconds.value if isinstance(seconds, dg.FloatMetadataValue) else None
            step.seconds = value or 0.0
        return False  # it ends with its success
    elif event.is_step_success:
        step.state = CACHED if step.seconds is None else BUILT
    elif event.is_step_failure:
        step.state, step.error = FAILED, _error(event)
        if step.error.startswith(dg.DagsterExecutionInterruptedError.__module__):
            step.state = STOPPED
    elif event.event_type_value == "STEP_UP_FOR_RETRY":
        step.state = WAITING
    else:
        return False
    return True


def _error(event: dg.DagsterEvent) -> str:
    """The user's exception: its type, message, and the line that raised it."""
    error = event.step_failure_data.error
    if error is None:
        return "no error is recorded"
    while error.cause is not None:
        error = error.cause
    place = error.stack[-1].strip().splitlines()[0].strip() if error.stack else ""
    return f"{error.message.strip()}" + (f"\n  {place}" if place else "")
