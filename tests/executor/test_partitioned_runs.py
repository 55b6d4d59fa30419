"""Runs of partitions: the partition chooses the steps, and everything else is as without."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from helpers.runs import (
    Recorder,
    Run,
    memory_instance,
    metadata_of,
    run_job,
    stale_status,
    status_of,
)
from marin_dagster import (
    MarinGraph,
    MarinIOManager,
    StepSpec,
    build_definitions,
    build_marin_assets,
    build_marin_checks,
    marin_executor,
)

DAYS = [f"2026-11-{day:02}" for day in range(1, 8)]
NAMES = ["prep", "train", "evaluate"]
DAILY = dg.DailyPartitionsDefinition("2026-11-01", end_date="2026-11-08")


def training(recorder: Recorder, fails: Callable[[str], bool] = lambda _: False) -> Any:
    """A day's preparation, training and evaluation, with one tokenizer for all days."""
    tokenizer = recorder.step("tokenizer")

    def steps_for(day: str) -> list[StepSpec]:
        prep = recorder.step("prep", hash_attrs={"day": day})
        train = recorder.step("train", prep, tokenizer, fails=fails(day))
        return [recorder.step("evaluate", train, result={"loss": float(day[-2:])})]

    return steps_for


def partitions(run: Run, kind: str = "ASSET_MATERIALIZATION") -> dict[str, str | None]:
    """The partition of each asset that a run reports."""
    return {
        event.asset_key.to_user_string(): event.partition
        for event in run.of_type(kind)
        if event.asset_key
    }


def test_a_partition_builds_its_own_steps(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    steps_for = training(recorder)
    definitions = build_definitions(steps_for, partitions_def=DAILY)

    first = run_job(definitions, instance, partition=DAYS[0])
    second = run_job(definitions, instance, partition=DAYS[1])

    assert first.success
    assert second.success
    assert sorted(recorder.take()) == sorted([*NAMES, "tokenizer", *NAMES])
    assert partitions(first) == {
        "prep": DAYS[0],
        "train": DAYS[0],
        "evaluate": DAYS[0],
        "tokenizer": None,
    }
    assert partitions(second) == {"prep": DAYS[1], "train": DAYS[1], "evaluate": DAYS[1]}
    assert partitions(second, "ASSET_OBSERVATION") == {"tokenizer": None}
    for day, run in ((DAYS[0], first), (DAYS[1], second)):
        (evaluate,) = steps_for(day)
        event = run.materialized()["evaluate"]
        assert metadata_of(event)["marin/output_path"] == evaluate.output_path
        assert metadata_of(event)["loss"] == float(day[-2:])
        assert event.tags is not None
        assert event.tags["dagster/data_version"] == evaluate.hash_id
        assert status_of(evaluate) == "SUCCESS"


def test_a_failed_day_resumes_with_its_failed_step(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    bad = {DAYS[1]}
    definitions = build_definitions(training(recorder, bad.__contains__), partitions_def=DAILY)
    assert run_job(definitions, instance, partition=DAYS[0]).success
    recorder.take()

    failed = run_job(definitions, instance, partition=DAYS[1])
    assert not failed.success
    assert sorted(recorder.take()) == ["prep", "train"]
    definitions = build_definitions(training(recorder), partitions_def=DAILY)
    resumed = run_job(definitions, instance, partition=DAYS[1])

    assert resumed.success
    assert recorder.take() == ["train", "evaluate"]
    assert partitions(resumed) == {"train": DAYS[1], "evaluate": DAYS[1]}
    assert partitions(resumed, "ASSET_OBSERVATION") == {"prep": DAYS[1], "tokenizer": None}
    status = instance.get_status_by_partition(dg.AssetKey("prep"), DAYS, DAILY)
    assert status is not None
    assert {day: state.value for day, state in status.items() if state} == {
        DAYS[0]: "MATERIALIZED",
        DAYS[1]: "MATERIALIZED",
    }


def test_what_a_failing_run_serves_and_prunes_keeps_its_status(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    """Dagster would show a served partition as failed when another step of the run fails."""
    steps_for = training(recorder)
    assert run_job(build_definitions(steps_for, partitions_def=DAILY), instance, partition=DAYS[0])

    def with_failing(day: str) -> list[StepSpec]:
        return [*steps_for(day), recorder.step("audit", fails=True, hash_attrs={"day": day})]

    definitions = build_definitions(with_failing, partitions_def=DAILY)
    assert not run_job(definitions, instance, partition=DAYS[0]).success

    def status(name: str) -> Any:
        found = instance.get_status_by_partition(dg.AssetKey(name), DAYS, DAILY)
        return found and found.get(DAYS[0])

    assert str(status("audit")) == "AssetPartitionStatus.FAILED"
    for name in NAMES:
        assert str(status(name)) == "AssetPartitionStatus.MATERIALIZED"


@pytest.mark.parametrize("days", [[DAYS[0], DAYS[1]], [DAYS[1], DAYS[0]]], ids=["up", "down"])
def test_built_and_served_partitions_are_fresh(
    recorder: Recorder, instance: dg.DagsterInstance, days: list[str]
) -> None:
    definitions = build_definitions(training(recorder), partitions_def=DAILY)
    for day in [*days, *days]:
        assert run_job(definitions, instance, partition=day).success
        for name in NAMES:
            assert stale_status(definitions, instance, name, day) == "FRESH"
    assert stale_status(definitions, instance, "prep", DAYS[2]) == "MISSING"


def test_a_partition_found_in_the_cache_later_makes_nothing_stale(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    """Built elsewhere, it is first recorded after what was built from it."""
    definitions = build_definitions(training(recorder), partitions_def=DAILY)
    with memory_instance() as elsewhere:
        assert run_job(definitions, elsewhere, select=["prep"], partition=DAYS[1]).success
    assert run_job(definitions, instance, select=["prep"], partition=DAYS[0]).success
    select = ["tokenizer", "train"]
    assert run_job(definitions, instance, select=select, partition=DAYS[1]).success

    assert run_job(definitions, instance, select=["prep"], partition=DAYS[1]).success

    assert stale_status(definitions, instance, "train", DAYS[1]) == "FRESH"


def test_a_changed_step_makes_all_partitions_stale(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions(training(recorder), partitions_def=DAILY)
    for day in DAYS[:2]:
        assert run_job(definitions, instance, partition=day).success

    def changed(day: str) -> list[StepSpec]:
        prep = recorder.step("prep", hash_attrs={"day": day})
        train = recorder.step("train", prep, recorder.step("tokenizer"), hash_attrs={"lr": 2})
        return [recorder.step("evaluate", train)]

    definitions = build_definitions(changed, partitions_def=DAILY)
    for day in DAYS[:2]:
        assert stale_status(definitions, instance, "prep", day) == "FRESH"
        assert stale_status(definitions, instance, "train", day) == "STALE"
        assert stale_status(definitions, instance, "evaluate", day) == "STALE"
    recorder.take()
    assert run_job(definitions, instance, partition=DAYS[0]).success
    assert recorder.take() == ["train", "evaluate"]
    assert stale_status(definitions, instance, "evaluate", DAYS[0]) == "FRESH"
    assert stale_status(definitions, instance, "evaluate", DAYS[1]) == "STALE"


def test_the_reason_compares_with_the_same_partition(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:

    def steps_for(rate: float) -> Any:
        return lambda day: [recorder.step("train", hash_attrs={"day": day, "lr": rate})]

    for rate, day in ((0.1, DAYS[0]), (0.1, DAYS[1]), (0.2, DAYS[0])):
        definitions = build_definitions(steps_for(rate), partitions_def=DAILY)
        run = run_job(definitions, instance, partition=day)
        reason = metadata_of(run.materialized()["train"])["marin/reason"]
    assert reason == "Attribute lr: 0.1 -> 0.2."


def test_each_day_starts_from_the_day_before(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:

    def steps_for(day: str) -> list[StepSpec]:
        model: StepSpec | None = None
        for one in DAYS[: DAYS.index(day) + 1]:
            data = recorder.step("prep", hash_attrs={"day": one})
            model = recorder.step("train", data, *([model] if model else []))
        assert model is not None
        return [model]

    definitions = build_definitions(steps_for, partitions_def=DAILY)

    early = run_job(definitions, instance, partition=DAYS[1])
    assert not early.success
    assert "of another partition, which has no successful output" in early.error("train")
    for day in DAYS[:3]:
        assert run_job(definitions, instance, partition=day).success
        assert stale_status(definitions, instance, "train", day) == "FRESH"
    assert recorder.take() == ["prep", "prep", "train", "train", "prep", "train"]
    graph = definitions.resolve_asset_graph()
    mapping = graph.get_partition_mapping(dg.AssetKey("train"), dg.AssetKey("train"))
    assert isinstance(mapping, dg.TimeWindowPartitionMapping)
    assert (mapping.start_offset, mapping.end_offset) == (-1, -1)


RATES = ["0.1", "0.2", "0.4"]


def sweep(recorder: Recorder) -> Any:
    """Points of a sweep, and a leaderboard of them all."""
    data = recorder.step("data")
    points = {rate: recorder.step("train", data, hash_attrs={"lr": rate}) for rate in RATES}
    leaderboard = recorder.step("leaderboard", *points.values())
    return lambda rate: [points[rate], leaderboard]


def test_a_leaderboard_over_the_points_of_a_sweep(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    static = dg.StaticPartitionsDefinition(RATES)
    definitions = build_definitions(sweep(recorder), partitions_def=static)
    graph = definitions.resolve_asset_graph()
    assert not graph.get(dg.AssetKey("leaderboard")).is_partitioned
    mapping = graph.get_partition_mapping(dg.AssetKey("leaderboard"), dg.AssetKey("train"))
    assert mapping == dg.AllPartitionMapping()

    for rate in RATES:
        assert run_job(definitions, instance, select=["data", "train"], partition=rate).success
    assert run_job(definitions, instance, select=["leaderboard"]).success

    assert recorder.take() == ["data", "train", "train", "train", "leaderboard"]


def test_what_all_partitions_share_waits_for_the_last(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    static = dg.StaticPartitionsDefinition(RATES)
    definitions = build_definitions(sweep(recorder), partitions_def=static)

    runs = [run_job(definitions, instance, partition=rate) for rate in RATES]

    assert all(run.success for run in runs)
    assert recorder.take() == ["data", "train", "train", "train", "leaderboard"]
    for run in runs[:2]:
        assert "waits for other partitions, which are not built" in run.skipped()["leaderboard"]


def test_dynamic_partitions(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    dynamic = dg.DynamicPartitionsDefinition(name="customers")
    instance.add_dynamic_partitions("customers", ["ada", "bob"])

    def steps_for(customer: str) -> list[StepSpec]:
        return [recorder.step("train", recorder.step("data"), hash_attrs={"customer": customer})]

    definitions = build_definitions(
        steps_for, partitions_def=dynamic, example_partitions="x", unpartitioned="data"
    )
    for key in ("ada", "bob"):
        assert run_job(definitions, instance, partition=key).success

    assert recorder.take() == ["data", "train", "train"]
    train = dg.AssetKey("train")
    assert instance.get_materialized_partitions(train) == {"ada", "bob"}


def test_multi_partitions(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    multi = dg.MultiPartitionsDefinition(
        {"day": DAILY, "size": dg.StaticPartitionsDefinition(["small", "large"])}
    )

    def steps_for(key: dg.MultiPartitionKey) -> list[StepSpec]:
        parts = key.keys_by_dimension
        return [recorder.step("train", recorder.step("data"), hash_attrs=dict(parts))]

    definitions = build_definitions(steps_for, partitions_def=multi)
    for key in (f"{DAYS[0]}|small", f"{DAYS[0]}|large", f"{DAYS[1]}|small"):
        run = run_job(definitions, instance, partition=key)
        assert run.success
        assert partitions(run)["train"] == key
    assert recorder.take() == ["data", "train", "train", "train"]
    again = run_job(definitions, instance, partition=f"{DAYS[1]}|small")
    assert partitions(again, "ASSET_OBSERVATION") == {"data": None, "train": f"{DAYS[1]}|small"}


def test_a_run_without_a_partition_builds_nothing(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions(training(recorder), partitions_def=DAILY)
    run = run_job(definitions, instance)
    assert not run.success
    assert recorder.take() == []
    text = " ".join(str(event.event_specific_data) for event in run.of_type("PIPELINE_FAILURE"))
    assert "is partitioned, and the run names no partition. Choose one" in text


@pytest.mark.parametrize("apart", [False, True], ids=["in-the-step", "apart"])
def test_a_check_alone_looks_at_the_partition_built_last(
    recorder: Recorder, instance: dg.DagsterInstance, apart: bool
) -> None:
    graph = MarinGraph.of(training(recorder), partitions_def=DAILY)
    definitions = build_definitions(graph, checks=not apart)
    for day in (DAYS[2], DAYS[1]):
        assert run_job(definitions, instance, partition=day).success
    key = dg.AssetCheckKey(dg.AssetKey("prep"), "cache_integrity")
    job = dg.define_asset_job("checks", selection=dg.AssetSelection.checks(key))
    checks = build_marin_checks(graph) if apart else []
    assets = build_marin_assets(graph, checks=not apart)
    alone = dg.Definitions(
        assets=assets,
        asset_checks=checks,
        jobs=[job],
        resources={"marin_io_manager": MarinIOManager()},
        executor=marin_executor,
    )
    run = run_job(alone, instance, job="checks")
    assert run.success
    (event,) = run.of_type("ASSET_CHECK_EVALUATION")
    evaluation = event.asset_check_evaluation_data
    assert evaluation.description == f"Partition {DAYS[1]}: The record agrees with the step."
