"""Schedules of graphs with partitions: which partitions a tick requests, and with which steps."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest

from helpers.runs import JOB, Recorder, run_job
from marin_dagster import MarinGraph, MarinIOManager, StepSpec, build_definitions
from marin_dagster.automation.due_steps import due_partitions
from marin_dagster.errors import GraphError

DAYS = [f"2026-11-{day:02}" for day in range(1, 31)]
DAILY = dg.DailyPartitionsDefinition("2026-11-01")
RATES = ["0.1", "0.2", "0.4"]
SWEEP = dg.StaticPartitionsDefinition(RATES)
CRON = "0 6 * * *"


@pytest.fixture(scope="module")
def home() -> Iterator[dg.DagsterInstance]:
    """On disk: Dagster refuses to evaluate ticks by an instance in memory."""
    with dg.instance_for_test() as made:
        yield made


@pytest.fixture
def instance(home: dg.DagsterInstance) -> dg.DagsterInstance:
    home.wipe()
    return home


def tick(
    definitions: dg.Definitions, instance: dg.DagsterInstance, day: int = 30, hour: int = 6
) -> Any:
    """A tick on a day of November."""
    repository = definitions.get_repository_def()
    with dg.build_schedule_context(
        instance=instance,
        repository_def=repository,
        resources={"marin_io_manager": MarinIOManager()},
        scheduled_execution_time=datetime(2026, 11, day, hour, tzinfo=UTC),
    ) as context:
        return repository.get_schedule_def(f"{JOB}_schedule").evaluate_tick(context)


def requested(found: Any) -> dict[str | None, list[str]]:
    """The assets of the run of each partition."""
    assert found.skip_message is None, found.skip_message
    assert len({request.run_key for request in found.run_requests}) == len(found.run_requests)
    return {
        request.partition_key: [key.to_user_string() for key in request.asset_selection]
        for request in found.run_requests
    }


def launch(definitions: dg.Definitions, instance: dg.DagsterInstance, found: Any) -> list[bool]:
    """Run what a tick requests."""
    return [
        run_job(definitions, instance, select=select, partition=partition).success
        for partition, select in requested(found).items()
    ]


def training(recorder: Recorder, bad: set[str]) -> Any:
    tokenizer = recorder.step("tokenizer")

    def steps_for(day: str) -> list[StepSpec]:
        def train(output_path: str) -> None:
            recorder.calls.append("train")
            if day in bad:
                raise RuntimeError("fails on purpose")

        prep = recorder.step("prep", hash_attrs={"day": day})
        return [StepSpec("train", deps=[prep, tokenizer], fn=train)]

    return steps_for


def test_a_tick_requests_the_day_that_has_ended_and_unfinished_ones_before(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    """Over some days, with one failure, by one code server."""
    bad = {DAYS[1]}
    start = dg.DailyPartitionsDefinition("2026-11-01")
    definitions = build_definitions(training(recorder, bad), partitions_def=start, schedule=CRON)

    first = tick(definitions, instance, day=2)
    assert requested(first) == {DAYS[0]: ["prep", "tokenizer", "train"]}
    assert launch(definitions, instance, first) == [True]
    again = tick(definitions, instance, day=2, hour=7)
    assert again.skip_message == f"Partition {DAYS[0]}: Nothing to run: all 3 steps are cached."

    second = tick(definitions, instance, day=3)
    assert requested(second) == {DAYS[1]: ["prep", "train"]}
    assert launch(definitions, instance, second) == [False]
    bad.clear()
    recorder.take()

    third = tick(definitions, instance, day=4)
    assert requested(third) == {DAYS[1]: ["train"], DAYS[2]: ["prep", "train"]}
    assert launch(definitions, instance, third) == [True, True]
    assert recorder.take() == ["train", "prep", "train"]
    assert tick(definitions, instance, day=4, hour=7).skip_message == (
        f"Partitions {DAYS[0]}, {DAYS[1]}, {DAYS[2]}: Nothing to run: all 3 steps are cached."
    )


def test_a_day_before_the_look_back_is_left_alone(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions(training(recorder, set()), partitions_def=DAILY, schedule=CRON)
    assert list(requested(tick(definitions, instance, day=20))) == DAYS[11:19]


def test_what_an_unfinished_run_builds_is_left_to_it_by_partition(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions(training(recorder, set()), partitions_def=DAILY, schedule=CRON)
    job = definitions.resolve_job_def(JOB)
    run = instance.create_run_for_job(job, tags={"dagster/partition": DAYS[0]})

    found = tick(definitions, instance, day=3)

    # The queued run also builds the tokenizer, which the second day's training needs.
    assert requested(found) == {DAYS[1]: ["prep"]}
    instance.report_run_canceled(run)
    assert requested(tick(definitions, instance, day=3)) == {
        DAYS[0]: ["prep", "tokenizer", "train"],
        DAYS[1]: ["prep", "tokenizer", "train"],
    }


def test_a_sweep_requests_every_unfinished_point_and_then_the_leaderboard(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    points = {rate: recorder.step("train", hash_attrs={"lr": rate}) for rate in RATES}
    leaderboard = recorder.step("leaderboard", *points.values())
    definitions = build_definitions(
        lambda rate: [points[rate], leaderboard], partitions_def=SWEEP, schedule=CRON
    )
    assert run_job(definitions, instance, select=["train"], partition=RATES[1]).success

    first = tick(definitions, instance)
    assert requested(first) == {RATES[0]: ["train"], RATES[2]: ["train"]}
    assert all(launch(definitions, instance, first))
    second = tick(definitions, instance)
    assert requested(second) == {None: ["leaderboard"]}
    assert all(launch(definitions, instance, second))
    assert "Nothing to run" in tick(definitions, instance).skip_message


def test_a_tick_requests_at_most_a_hundred_runs(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    keys = [f"p{number:03}" for number in range(130)]
    definitions = build_definitions(
        lambda key: [recorder.step("train", hash_attrs={"key": key})],
        partitions_def=dg.StaticPartitionsDefinition(keys),
        schedule=CRON,
    )
    assert list(requested(tick(definitions, instance))) == keys[:100]


def test_dynamic_partitions_are_those_of_the_instance(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions(
        lambda key: [recorder.step("train", hash_attrs={"key": key})],
        partitions_def=dg.DynamicPartitionsDefinition(name="customers"),
        example_partitions="ada",
        schedule=CRON,
    )
    assert tick(definitions, instance).skip_message == "No partition is due."
    instance.add_dynamic_partitions("customers", ["bob"])
    assert requested(tick(definitions, instance)) == {"bob": ["train"]}


HOURLY = dg.HourlyPartitionsDefinition("2026-11-01-00:00", timezone="America/New_York")
DUE: list[Any] = [
    pytest.param(DAILY, 1, ["2026-11-28", "2026-11-29"], id="daily"),
    pytest.param(
        dg.DailyPartitionsDefinition("2026-11-01", end_offset=1),
        1,
        ["2026-11-29", "2026-11-30"],
        id="end-offset",
    ),
    pytest.param(HOURLY, 0, ["2026-11-30-00:00"], id="hourly-time-zone"),
    pytest.param(dg.WeeklyPartitionsDefinition("2026-11-01"), 0, ["2026-11-22"], id="weekly"),
    pytest.param(dg.MonthlyPartitionsDefinition("2026-01-01"), 0, ["2026-10-01"], id="monthly"),
    pytest.param(
        dg.TimeWindowPartitionsDefinition(
            start="2026-11-01", cron_schedule="0 6 * * 1-5", fmt="%Y-%m-%d"
        ),
        0,
        ["2026-11-27"],
        id="cron",
    ),
    pytest.param(SWEEP, 0, RATES, id="static"),
    pytest.param(
        dg.MultiPartitionsDefinition({"day": DAILY, "rate": SWEEP}),
        1,
        [f"{day}|{rate}" for day in ("2026-11-28", "2026-11-29") for rate in RATES],
        id="multi",
    ),
]


@pytest.mark.parametrize(("definition", "look_back", "expected"), DUE)
def test_due_partitions(definition: Any, look_back: int, expected: list[str]) -> None:
    now = datetime(2026, 11, 30, 6, tzinfo=UTC)
    assert [str(key) for key in due_partitions(definition, now, look_back, None)] == expected


def test_a_function_without_partitions_is_called_at_each_tick(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    today = [DAYS[0]]

    def steps() -> list[StepSpec]:
        return [recorder.step("train", recorder.step("raw"), hash_attrs={"day": today[0]})]

    definitions = build_definitions(steps, schedule=CRON)
    assert launch(definitions, instance, tick(definitions, instance)) == [True]
    assert "all 2 steps are cached" in tick(definitions, instance).skip_message

    today[0] = DAYS[1]

    assert requested(tick(definitions, instance)) == {None: ["train"]}


def test_a_function_that_returns_other_assets_asks_for_a_reload(recorder: Recorder) -> None:
    names = ["train"]
    graph = MarinGraph.of(lambda: [recorder.step(name) for name in names])
    assert graph.refreshed() is graph
    names.append("evaluate")
    with pytest.raises(GraphError, match=r"\(evaluate\)\. Reload the code location"):
        graph.refreshed()
