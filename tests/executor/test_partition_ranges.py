"""Runs of several partitions: each is built, reported and fails by itself."""

import threading
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Recorder, Run, metadata_of, run_job, stale_status, status_of
from marin_dagster import StepSpec, build_definitions, marin_executor
from marin_dagster.assets.partitions import run_partitions
from marin_dagster.cache import DriftLog
from marin_dagster.errors import GraphError
from marin_dagster.executor import runner_executor
from marin_dagster.steps import partitions

DAYS = [f"2026-11-{day:02}" for day in range(1, 8)]
DAILY = dg.DailyPartitionsDefinition("2026-11-01", end_date="2026-11-08")
WHOLE = (DAYS[0], DAYS[-1])
ALL_AT_ONCE = dg.BackfillPolicy.single_run()
BACKFILL = {"dagster/backfill": "abc"}


def training(recorder: Recorder, bad: Any = frozenset()) -> Any:
    """Preparation, training and evaluation of a day, with one tokenizer for all days."""
    tokenizer = recorder.step("tokenizer")

    def steps_for(day: str) -> list[StepSpec]:
        def train(output_path: str) -> dict[str, int]:
            recorder.calls.append(f"train {day}")
            if day in bad:
                raise RuntimeError(f"{day} is bad")
            return {"day": int(day[-2:])}

        prep = recorder.step("prep", hash_attrs={"day": day})
        return [recorder.step("evaluate", StepSpec("train", deps=[prep, tokenizer], fn=train))]

    return steps_for


def materialized(run: Run) -> dict[str, list[str | None]]:
    """The partitions of each asset that a run materializes, in the order of their events."""
    found: dict[str, list[str | None]] = {}
    for event in run.of_type("ASSET_MATERIALIZATION"):
        assert event.asset_key is not None
        found.setdefault(event.asset_key.to_user_string(), []).append(event.partition)
    return {key: sorted(map(str, partitions)) for key, partitions in found.items()}


def test_each_partition_of_a_range_has_its_own_materialization(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps_for = training(recorder)
    definitions = build_definitions(steps_for, partitions_def=DAILY, backfill_policy=ALL_AT_ONCE)

    run = run_job(definitions, instance, partition=WHOLE)

    assert run.success
    assert materialized(run) == {
        "prep": DAYS,
        "train": DAYS,
        "evaluate": DAYS,
        "tokenizer": ["None"],
    }
    assert recorder.calls.count("tokenizer") == 1
    for event in run.of_type("ASSET_MATERIALIZATION"):
        data = event.step_materialization_data.materialization
        if data.asset_key == dg.AssetKey("train"):
            assert data.partition is not None
            (evaluate,) = steps_for(data.partition)
            (train,) = evaluate.deps
            assert data.tags is not None
            assert data.tags["dagster/data_version"] == train.hash_id
            assert metadata_of(data)["marin/output_path"] == train.output_path
            assert metadata_of(data)["day"] == int(data.partition[-2:])
            assert "marin/reason" in metadata_of(data)
            assert "__source_asset_observation__" not in metadata_of(data)
    for day in (DAYS[0], DAYS[-1]):
        for name in ("prep", "train", "evaluate"):
            assert stale_status(definitions, instance, name, day) == "FRESH"


def test_a_partition_that_fails_leaves_the_others_alone(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    bad = {DAYS[2]}
    definitions = build_definitions(training(recorder, bad), partitions_def=DAILY)
    good = [day for day in DAYS if day not in bad]

    run = run_job(definitions, instance, partition=WHOLE)

    assert not run.success
    assert materialized(run) == {
        "prep": DAYS,
        "train": good,
        "evaluate": good,
        "tokenizer": ["None"],
    }
    assert "1 of 7 partitions of 'train' failed: 2026-11-03: RuntimeError" in run.error("train")
    assert "needs 'train' of partition 2026-11-03, which failed in this run" in run.error(
        "evaluate"
    )
    bad.clear()
    recorder.take()

    again = run_job(definitions, instance, partition=WHOLE)

    assert again.success
    assert recorder.take() == ["train 2026-11-03", "evaluate"]
    assert materialized(again) == {"train": [DAYS[2]], "evaluate": [DAYS[2]]}
    observed = [event.partition for event in again.of_type("ASSET_OBSERVATION")]
    assert sorted(map(str, observed)) == sorted(map(str, [*good, *good, *DAYS, None]))


def test_where_every_partition_fails_nothing_runs_below(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions(training(recorder, set(DAYS)), partitions_def=DAILY)
    run = run_job(definitions, instance, partition=WHOLE)
    assert not run.success
    assert run.steps("STEP_FAILURE") == ["train"]
    assert "evaluate" not in recorder.calls
    assert "Result: 8 built, 7 failed, 7 not run." in run_log(instance, run)


def run_log(instance: dg.DagsterInstance, run: Run) -> str:
    return "\n".join(entry.user_message or "" for entry in instance.all_logs(run.run_id))


def test_partitions_run_side_by_side_within_the_limit(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    """Three at once, of all steps together."""
    running, most = [0], [0]
    mutex, together = threading.Lock(), threading.Barrier(3, timeout=60)

    def steps_for(day: str) -> list[StepSpec]:
        def work(output_path: str) -> None:
            with mutex:
                running[0] += 1
                most[0] = max(most[0], running[0])
            together.wait()
            with mutex:
                running[0] -= 1

        return [StepSpec(name, fn=work, hash_attrs={"day": day}) for name in ("a", "b", "c")]

    definitions = build_definitions(steps_for, partitions_def=DAILY)
    # 21 in all, in groups of three: more or fewer at once would break the barrier.
    run = run_job(definitions, instance, partition=WHOLE, config={"max_concurrent": 3})
    assert run.success
    assert most == [3]


def test_each_day_of_a_range_starts_from_the_day_before(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    def steps_for(day: str) -> list[StepSpec]:
        model: list[StepSpec] = []
        for one in DAYS[: DAYS.index(day) + 1]:

            def train(output_path: str, day: str = one, before: list[StepSpec] = model) -> None:
                for step in before:
                    assert Path(step.output_path, "model").exists()
                recorder.calls.append(day)
                Path(output_path, "model").touch()

            model = [StepSpec("train", deps=model, fn=train, hash_attrs={"day": one})]
        return [recorder.step("evaluate", *model)]

    definitions = build_definitions(steps_for, partitions_def=DAILY)
    run = run_job(definitions, instance, partition=WHOLE)
    assert run.success
    assert [call for call in recorder.take() if call in DAYS] == DAYS
    # A checkpoint in the middle is gone, and only what needs it is built again.
    (evaluate,) = steps_for(DAYS[-1])
    Path(evaluate.output_path, ".executor_status").unlink()
    (train,) = evaluate.deps
    for step in (train, *train.deps):
        Path(step.output_path, ".executor_status").unlink()
    assert run_job(definitions, instance, partition=WHOLE).success
    assert recorder.take() == [DAYS[-2], DAYS[-1], "evaluate"]


def test_a_retry_policy_retries_the_failed_partitions_alone(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    failures = {DAYS[1]: 1, DAYS[4]: 2}

    def steps_for(day: str) -> list[StepSpec]:
        def train(output_path: str) -> None:
            recorder.calls.append(day)
            if failures.get(day):
                failures[day] -= 1
                raise RuntimeError("evicted")

        return [recorder.step("evaluate", StepSpec("train", fn=train, hash_attrs={"day": day}))]

    definitions = build_definitions(
        steps_for, partitions_def=DAILY, retry_policy=dg.RetryPolicy(max_retries=2)
    )
    run = run_job(definitions, instance, partition=WHOLE)
    assert run.success
    calls = [call for call in recorder.take() if call in DAYS]
    assert sorted(calls) == sorted([*DAYS, DAYS[1], DAYS[4], DAYS[4]])
    assert materialized(run)["evaluate"] == DAYS
    records = dg.AssetRecordsFilter(dg.AssetKey("train"))
    events = instance.fetch_materializations(records, limit=100).records
    assert sorted(str(event.partition_key) for event in events) == DAYS
    assert not run.of_type("ASSET_OBSERVATION")
    assert "Result: 14 built." in run_log(instance, run)


def test_a_backfill_gets_a_materialization_of_every_partition(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    """Dagster's backfill waits for one of each; an observation would keep it waiting."""
    definitions = build_definitions(training(recorder), partitions_def=DAILY)
    assert run_job(definitions, instance, partition=DAYS[3]).success
    recorder.take()
    run = run_job(definitions, instance, partition=WHOLE, tags=BACKFILL)
    assert run.success
    assert materialized(run) == {
        "prep": DAYS,
        "train": DAYS,
        "evaluate": DAYS,
        "tokenizer": ["None"],
    }
    assert f"train {DAYS[3]}" not in recorder.calls


def test_a_dry_run_of_a_range_names_each_partition(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps_for = training(recorder)
    definitions = build_definitions(steps_for, partitions_def=DAILY)
    assert run_job(definitions, instance, partition=DAYS[0]).success
    run = run_job(definitions, instance, partition=(DAYS[0], DAYS[1]), config={"dry_run": True})
    (first,), (second,) = steps_for(DAYS[0]), steps_for(DAYS[1])
    text = run.skipped()["evaluate"]
    assert f"would be served: {first.name_with_hash}" in text
    assert f"would run: {second.name_with_hash}" in text


def test_force_builds_every_partition_again(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions(training(recorder), partitions_def=DAILY)
    assert run_job(definitions, instance, partition=WHOLE).success
    recorder.take()
    run = run_job(definitions, instance, partition=(DAYS[0], DAYS[1]), config={"force": ["train"]})
    assert run.success
    assert sorted(recorder.take()) == ["train 2026-11-01", "train 2026-11-02"]


def test_a_cancelled_range_stops_all_of_its_partitions(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    stop, started = threading.Event(), threading.Semaphore(0)

    def steps_for(day: str) -> list[StepSpec]:
        def train(output_path: str) -> None:
            started.release()
            threading.Event().wait(0.01)
            while True:
                threading.Event().wait(0.01)

        return [StepSpec("train", fn=train, hash_attrs={"day": day})]

    executor = runner_executor(3, {}, frozenset(), {}, DriftLog(), built=set(), stop=stop)
    definitions = build_definitions(steps_for, partitions_def=DAILY, executor=executor)

    def cancel() -> None:
        for _ in range(3):
            started.acquire()
        stop.set()

    threading.Thread(target=cancel, daemon=True).start()
    assert not run_job(definitions, instance, partition=WHOLE).success
    statuses = [status_of(step) for day in DAYS for step in steps_for(day)]
    assert sorted(map(str, statuses)) == ["FAILED"] * 3 + ["None"] * 4


def test_another_executor_builds_them_one_after_the_other(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions(
        training(recorder, {DAYS[2]}), partitions_def=DAILY, executor=dg.in_process_executor
    )
    run = run_job(definitions, instance, partition=WHOLE)
    assert not run.success
    good = [day for day in DAYS if day != DAYS[2]]
    assert materialized(run)["train"] == good


def test_a_range_of_multi_partitions(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    multi = dg.MultiPartitionsDefinition(
        {"day": DAILY, "size": dg.StaticPartitionsDefinition(["small", "large"])}
    )

    def steps_for(key: dg.MultiPartitionKey) -> list[StepSpec]:
        return [recorder.step("train", hash_attrs=dict(key.keys_by_dimension))]

    definitions = build_definitions(steps_for, partitions_def=multi)
    run = run_job(definitions, instance, partition=(f"{DAYS[0]}|large", f"{DAYS[1]}|large"))
    assert run.success
    assert materialized(run) == {"train": [f"{DAYS[0]}|large", f"{DAYS[1]}|large"]}
    (event, *_) = run.of_type("ASSET_MATERIALIZATION")
    tags = event.step_materialization_data.materialization.tags or {}
    assert tags["dagster/partition/size"] == "large"


def test_a_range_that_is_none_names_the_partitions(instance: dg.DagsterInstance) -> None:
    run = dg.DagsterRun(
        "materialize_steps",
        tags={
            "dagster/asset_partition_range_start": DAYS[0],
            "dagster/asset_partition_range_end": "2027-01-01",
        },
    )
    with pytest.raises(GraphError, match=r"for partitions '2026-11-01' to '2027-01-01', which are"):
        run_partitions(run, DAILY, instance)


def test_what_all_partitions_share_does_not_run_without_one_of_them(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    """A leaderboard without the point that failed would be cached as if it were whole."""
    points = {
        day: recorder.step("train", hash_attrs={"day": day}, fails=day == DAYS[1]) for day in DAYS
    }
    leaderboard = recorder.step("leaderboard", *points.values())
    definitions = build_definitions(lambda day: [points[day], leaderboard], partitions_def=DAILY)

    run = run_job(definitions, instance, partition=WHOLE)

    assert not run.success
    assert "leaderboard" not in recorder.calls
    assert "reads outputs that are not finished: train_" in run.error("leaderboard")
    assert status_of(leaderboard) is None


@pytest.mark.parametrize("bad", [frozenset(), frozenset({DAYS[1]})], ids=["built", "one-failed"])
def test_an_ordinary_asset_below_needs_every_partition(
    recorder: Recorder, instance: dg.DagsterInstance, bad: frozenset[str]
) -> None:
    @dg.asset(deps=["train"], partitions_def=DAILY)
    def report() -> None:
        recorder.calls.append("report")

    @dg.asset(deps=["report"], partitions_def=DAILY)
    def mail() -> None:
        recorder.calls.append("mail")

    ours = build_definitions(training(recorder, bad), partitions_def=DAILY)
    job = dg.define_asset_job("all", selection=dg.AssetSelection.all())
    ordinary = dg.Definitions(assets=[report, mail], jobs=[job], executor=marin_executor)
    merged = dg.Definitions.merge(ours, ordinary)

    run = run_job(merged, instance, job="all", partition=WHOLE)

    assert run.success is not bool(bad)
    ran = [call for call in recorder.calls if call in ("report", "mail")]
    assert ran == ([] if bad else ["report", "mail"])
    if bad:
        assert "Dependencies for step report failed for some partitions" in run_log(instance, run)


def test_a_range_longer_than_the_kept_graphs_is_pruned(
    recorder: Recorder, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_KEPT", 2)
    steps_for = training(recorder)
    definitions = build_definitions(steps_for, partitions_def=DAILY)
    assert run_job(definitions, instance, partition=WHOLE).success
    for day in DAYS:
        (evaluate,) = steps_for(day)
        (train,) = evaluate.deps
        Path(train.output_path, ".executor_status").unlink()
    recorder.take()

    assert run_job(definitions, instance, partition=WHOLE).success

    assert recorder.take() == []


def test_a_failure_that_allows_no_retry_leaves_the_others_alone(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    def steps_for(day: str) -> list[StepSpec]:
        def train(output_path: str) -> None:
            recorder.calls.append(day)
            if day == DAYS[1]:
                raise dg.Failure("hopeless", allow_retries=False)

        return [recorder.step("evaluate", StepSpec("train", fn=train, hash_attrs={"day": day}))]

    definitions = build_definitions(
        steps_for, partitions_def=DAILY, retry_policy=dg.RetryPolicy(max_retries=2)
    )
    run = run_job(definitions, instance, partition=WHOLE)
    assert not run.success
    good = [day for day in DAYS if day != DAYS[1]]
    assert materialized(run)["evaluate"] == good
    assert sorted(call for call in recorder.calls if call in DAYS) == DAYS
