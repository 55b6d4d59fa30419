"""Dagster's own scheduler loop on a code location: a code server, ticks, and real runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.remote_representation.external import RemoteSchedule
from dagster._core.scheduler.instigation import InstigatorTick
from dagster._core.test_utils import create_test_daemon_workspace_context, freeze_time
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._scheduler.scheduler import launch_scheduled_runs

from helpers.processes import wait_until


@contextmanager
def launching_instance() -> Iterator[dg.DagsterInstance]:
    """An instance whose runs start at once, in processes of their own."""
    launch_at_once = {
        "run_coordinator": {
            "module": "dagster._core.run_coordinator",
            "class": "DefaultRunCoordinator",
        },
        "run_launcher": {"module": "dagster._core.launcher", "class": "DefaultRunLauncher"},
    }
    with dg.instance_for_test(overrides=launch_at_once) as made:
        yield made


@contextmanager
def scheduler_of(file: Path, instance: dg.DagsterInstance) -> Iterator["SchedulerLoop"]:
    """Start a code server with the definitions of a file; they contain one schedule."""
    target = PythonFileTarget(
        python_file=str(file), attribute=None, working_directory=None, location_name="location"
    )
    with create_test_daemon_workspace_context(target, instance) as workspace:
        yield SchedulerLoop(workspace, instance)


class SchedulerLoop:
    """The schedule of a code location, and the loop that evaluates its ticks."""

    def __init__(self, workspace: Any, instance: dg.DagsterInstance) -> None:
        self._workspace = workspace
        self._instance = instance

    @property
    def code_server(self) -> str:
        """Id of the code server; another one after a reload."""
        return str(self._location.server_id)

    @property
    def schedule(self) -> RemoteSchedule:
        """The schedule."""
        (repository,) = self._location.get_repositories().values()
        (found,) = repository.get_schedules()
        return found

    @property
    def _location(self) -> Any:
        (location,) = self._workspace.create_request_context().code_locations
        return location

    def start(self, since: datetime | None = None) -> None:
        """Switch the schedule on, as if at some moment."""
        with freeze_time(since or datetime.now(UTC)):
            self._instance.start_schedule(self.schedule)

    def tick(self, now: datetime) -> InstigatorTick:
        """The tick that is due at a moment."""
        list(launch_scheduled_runs(self._workspace, logging.getLogger("scheduler"), now, {}))
        schedule = self.schedule
        tick: InstigatorTick = self._instance.get_ticks(
            schedule.get_remote_origin_id(), schedule.selector_id, limit=1
        )[0]
        return tick

    def tick_in(self, days: int) -> InstigatorTick:
        """The tick that is due when some days have passed."""
        return self.tick(datetime.now(UTC) + timedelta(days=days))

    def finished(self, run_id: str) -> dg.DagsterRun:
        """A run, once it has ended."""

        def found() -> dg.DagsterRun:
            run = self._instance.get_run_by_id(run_id)
            assert run is not None
            return run

        wait_until(lambda: found().is_finished, "the scheduled run to end", every_s=0.1)
        return found()
