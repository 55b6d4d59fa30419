"""The daily training that nobody watches: scheduled, by day, and only what failed runs again."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.scheduler.instigation import InstigatorTick, TickStatus

from helpers.processes import wait_until
from helpers.scheduler_loop import SchedulerLoop, launching_instance, scheduler_of

LOCATION = Path(__file__).with_name("daily_training_location.py")
DAYS = [f"2025-03-{day:02}" for day in range(3, 6)]
PREP, TRAIN, EVALUATE = 4, 38, 3
EVICTED_AT = 35


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which steps note the units of work that they do."""
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setenv("TRAINING_NOTES", str(folder))
    return folder


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with launching_instance() as made:
        yield made


@pytest.fixture
def scheduler(notes: Path, instance: dg.DagsterInstance) -> Iterator[SchedulerLoop]:
    """A schedule that was switched on in the night before the first day."""
    with scheduler_of(LOCATION, instance) as made:
        made.start(since=datetime(2025, 3, 3, tzinfo=UTC))
        yield made


def morning_after(day: str) -> datetime:
    """When the tick for a day is due."""
    return datetime.fromisoformat(f"{day}T06:01:00+00:00") + timedelta(days=1)


def units(notes: Path, day: str) -> dict[str, int]:
    """Units of work that each step of a day has done, all attempts together."""
    return dict(Counter(notes.joinpath(day).read_text().split()))


def launched(
    scheduler: SchedulerLoop, tick: InstigatorTick
) -> dict[str, tuple[dg.DagsterRun, list[str]]]:
    """The runs of a tick once they have ended, by partition, with the assets they selected."""
    assert tick.status is TickStatus.SUCCESS, tick
    runs = [scheduler.finished(run_id) for run_id in tick.run_ids]
    return {
        run.tags["dagster/partition"]: (
            run,
            sorted(key.to_user_string() for key in run.asset_selection or ()),
        )
        for run in runs
    }


def steps_of(instance: dg.DagsterInstance, run: dg.DagsterRun, kind: str) -> list[str | None]:
    """Step keys of a run's events of one kind."""
    events = [entry.dagster_event for entry in instance.all_logs(run.run_id)]
    return [event.step_key for event in events if event and event.event_type_value == kind]


def test_an_evicted_training_is_retried_alone(
    scheduler: SchedulerLoop, instance: dg.DagsterInstance, notes: Path
) -> None:
    """80 units and not 84: the preparation is not done again."""
    day = DAYS[0]
    spot, pid = (notes / f"{day}.{kind}" for kind in ("spot", "pid"))
    spot.touch()

    tick = scheduler.tick(morning_after(day))
    wait_until(pid.exists, "the training to reach the unit at which it is evicted")
    spot.unlink()
    os.kill(int(pid.read_text()), signal.SIGKILL)
    found = launched(scheduler, tick)

    ((run, selected),) = found.values()
    assert list(found) == [day]
    assert run.is_success
    assert selected == ["evaluate", "prep", "train"]
    assert units(notes, day) == {"prep": PREP, "train": EVICTED_AT + TRAIN, "evaluate": EVALUATE}
    assert sum(units(notes, day).values()) == 80
    assert steps_of(instance, run, "STEP_UP_FOR_RETRY") == ["train"]
    assert steps_of(instance, run, "STEP_FAILURE") == []
    assert instance.get_materialized_partitions(dg.AssetKey("evaluate")) == {day}
    assert len(instance.get_runs()) == 1


def test_a_failed_day_resumes_on_the_next_morning(
    scheduler: SchedulerLoop, instance: dg.DagsterInstance, notes: Path
) -> None:
    """Three days by one code server, which is never reloaded."""
    broken = notes / f"{DAYS[1]}.broken"
    broken.touch()
    server = scheduler.code_server
    whole = ["evaluate", "prep", "train"]
    good = {"prep": PREP, "train": TRAIN, "evaluate": EVALUATE}

    first = launched(scheduler, scheduler.tick(morning_after(DAYS[0])))
    second = launched(scheduler, scheduler.tick(morning_after(DAYS[1])))
    assert {day: (run.is_success, selected) for day, (run, selected) in first.items()} == {
        DAYS[0]: (True, whole)
    }
    assert {day: (run.is_success, selected) for day, (run, selected) in second.items()} == {
        DAYS[1]: (False, whole)
    }
    failed = {"prep": PREP, "train": 2 * EVICTED_AT}
    assert units(notes, DAYS[1]) == failed

    broken.unlink()
    third = launched(scheduler, scheduler.tick(morning_after(DAYS[2])))

    assert {day: (run.is_success, selected) for day, (run, selected) in third.items()} == {
        DAYS[1]: (True, ["evaluate", "train"]),
        DAYS[2]: (True, whole),
    }
    assert units(notes, DAYS[0]) == units(notes, DAYS[2]) == good
    assert units(notes, DAYS[1]) == {**good, "train": failed["train"] + TRAIN}
    assert instance.get_materialized_partitions(dg.AssetKey("evaluate")) == set(DAYS)
    assert scheduler.code_server == server
    assert len(instance.get_runs()) == 4
