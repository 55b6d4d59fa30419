"""Dagster's own scheduler on a code location with a schedule: a code server, ticks, real runs."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.scheduler.instigation import TickStatus

from helpers.scheduler_loop import SchedulerLoop, launching_instance, scheduler_of

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
    with launching_instance() as made:
        yield made


@pytest.fixture
def scheduler(instance: dg.DagsterInstance, tmp_path: Path) -> Iterator[SchedulerLoop]:
    file = tmp_path / "location.py"
    file.write_text(CODE_LOCATION)
    with scheduler_of(file, instance) as made:
        yield made


def test_the_scheduler_launches_what_must_run_and_then_skips(
    scheduler: SchedulerLoop, instance: dg.DagsterInstance, store: Path
) -> None:
    schedule = scheduler.schedule
    assert (schedule.name, schedule.cron_schedule) == ("materialize_steps_schedule", "0 6 * * *")
    scheduler.start()

    first = scheduler.tick_in(days=1)
    assert first.status is TickStatus.SUCCESS, first
    run = scheduler.finished(first.run_ids[0])
    second = scheduler.tick_in(days=2)

    assert run.is_success
    assert run.asset_selection == {dg.AssetKey("raw"), dg.AssetKey("end")}
    assert sorted(path.parent.name[:3] for path in store.glob("*/data.txt")) == ["end", "raw"]
    assert second.status is TickStatus.SKIPPED
    assert second.skip_reason == "Nothing to run: all 2 steps are cached."
    assert len(instance.get_runs()) == 1
