"""Dagster's own scheduler on a code location with a schedule: a code server, ticks, real runs."""

import datetime
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_representation.external import RemoteSchedule
from dagster._core.scheduler.instigation import InstigatorTick, TickStatus
from dagster._core.test_utils import create_test_daemon_workspace_context
from dagster._core.workspace.load_target import PythonFileTarget
from dagster._scheduler.scheduler import launch_scheduled_runs

DEADLINE_S = 120
"""Guard against a hang."""

CODE_LOCATION = """
from pathlib import Path
from marin_dagster import StepSpec, build_definitions

def fill(output_path):
    Path(output_path, "data.txt").write_text("data")

raw = StepSpec("raw", fn=fill)
defs = build_definitions([StepSpec("end", deps=[raw], fn=fill)], schedule="0 6 * * *")
"""


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    launch_at_once = {
        "run_coordinator": {
            "module": "dagster._core.run_coordinator",
            "class": "DefaultRunCoordinator",
        },
        "run_launcher": {"module": "dagster._core.launcher", "class": "DefaultRunLauncher"},
    }
    with dg.instance_for_test(overrides=launch_at_once) as made:
        yield made


@pytest.fixture
def workspace(instance: dg.DagsterInstance, tmp_path: Path) -> Iterator[Any]:
    file = tmp_path / "location.py"
    file.write_text(CODE_LOCATION)
    target = PythonFileTarget(
        python_file=str(file), attribute=None, working_directory=None, location_name="location"
    )
    with create_test_daemon_workspace_context(target, instance) as made:
        yield made


def _schedule(workspace: Any) -> RemoteSchedule:
    (location,) = workspace.create_request_context().code_locations
    (repository,) = location.get_repositories().values()
    (found,) = repository.get_schedules()
    return found


def _tick(workspace: Any, days: int) -> InstigatorTick:
    """The tick of the schedule that is due when some days have passed."""
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    list(launch_scheduled_runs(workspace, logging.getLogger("scheduler"), now, {}))
    schedule = _schedule(workspace)
    tick: InstigatorTick = workspace.instance.get_ticks(
        schedule.get_remote_origin_id(), schedule.selector_id, limit=1
    )[0]
    return tick


def _finished(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRun:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        run = instance.get_run_by_id(run_id)
        if run is not None and run.is_finished:
            return run
        time.sleep(0.1)
    raise AssertionError("the scheduled run does not end")


def test_the_scheduler_launches_what_must_run_and_then_skips(
    workspace: Any, instance: dg.DagsterInstance, store: Path
) -> None:
    schedule = _schedule(workspace)
    assert (schedule.name, schedule.cron_schedule) == ("materialize_steps_schedule", "0 6 * * *")
    instance.start_schedule(schedule)

    first = _tick(workspace, days=1)
    assert first.status is TickStatus.SUCCESS, first
    run = _finished(instance, first.run_ids[0])
    second = _tick(workspace, days=2)

    assert run.is_success
    assert run.asset_selection == {dg.AssetKey("raw"), dg.AssetKey("end")}
    assert sorted(path.parent.name[:3] for path in store.glob("*/data.txt")) == ["end", "raw"]
    assert second.status is TickStatus.SKIPPED
    assert second.skip_reason == "Nothing to run: all 2 steps are cached."
    assert len(instance.get_runs()) == 1
