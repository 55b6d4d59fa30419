"""The cache sensor with partitions: each is reported once, and a tick checks a bounded number."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
import pytest

from helpers.runs import Recorder, metadata_of, run_job, stale_status
from helpers.sensor_ticks import Watch, build_outside
from marin_dagster import DagsterMarinTranslator, MarinGraph, MarinIOManager, StepCache, StepSpec
from marin_dagster.automation import cache_sensor as sensor_module
from marin_dagster.automation import watched_steps as watched_module
from marin_dagster.automation.store_changes import SensorCursor
from marin_dagster.cache import Attempt

GUARD_S = 60
DAYS = [f"2026-11-{day:02}" for day in range(1, 5)]
DAILY = dg.DailyPartitionsDefinition("2026-11-01", end_date="2026-11-05")
RATES = ["0.1", "0.2", "0.4"]
SWEEP = dg.StaticPartitionsDefinition(RATES)


def training(recorder: Recorder) -> Any:
    """A day's preparation and training, with one tokenizer for all days."""
    tokenizer = recorder.step("tokenizer")

    def steps_for(day: str) -> list[StepSpec]:
        prep = recorder.step("prep", hash_attrs={"day": str(day)})
        return [recorder.step("train", prep, tokenizer, result={"loss": 0.5})]

    return steps_for


def deliver(*steps: StepSpec) -> None:
    for step in steps:
        folder = Path(step.output_path)
        folder.mkdir(parents=True)
        (folder / ".executor_status").write_text("SUCCESS")


@pytest.mark.parametrize(
    ("definition", "built"),
    [
        (SWEEP, ["0.2"]),
        (DAILY, [DAYS[1], DAYS[3]]),
        (
            dg.MultiPartitionsDefinition({"day": DAILY, "rate": SWEEP}),
            [dg.MultiPartitionKey({"day": DAYS[1], "rate": "0.2"})],
        ),
    ],
    ids=["static", "daily", "multi"],
)
def test_partitions_that_were_built_outside_are_materialized_once_and_fresh(
    recorder: Recorder,
    instance: dg.DagsterInstance,
    definition: dg.PartitionsDefinition[Any],
    built: list[str],
) -> None:
    steps_for = training(recorder)
    for key in built:
        build_outside(*steps_for(key))
    watch = Watch(instance, steps_for, settings={"partitions_def": definition})

    events = watch.tick()

    assert list(events) == [
        "tokenizer",
        *(f"{name} [{key}]" for key in built for name in ("prep", "train")),
    ]
    assert watch.tick() == {}
    assert watch.remembered == 0
    assert stale_status(watch.definitions, instance, "tokenizer") == "FRESH"
    for key in built:
        (train,) = steps_for(key)
        event = events[f"train [{key}]"]
        assert event.tags["dagster/data_version"] == train.hash_id
        assert metadata_of(event)["marin/output_path"] == train.output_path
        assert metadata_of(event)["loss"] == 0.5
        for name in ("prep", "train"):
            assert stale_status(watch.definitions, instance, name, key) == "FRESH"
            assert instance.get_materialized_partitions(dg.AssetKey(name)) == set(built)
    run = run_job(watch.definitions, instance, partition=built[0])
    assert (run.observed(), run.materialized()) == (["prep", "tokenizer", "train"], {})


def test_a_changed_step_is_stale_until_it_is_found_again(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    def steps_for(rate: float) -> Any:
        return lambda day: [recorder.step("train", hash_attrs={"day": day, "lr": rate})]

    watch = Watch(instance, steps_for(0.1), settings={"partitions_def": DAILY})
    for rate in (0.1, 0.2):
        build_outside(*steps_for(rate)(DAYS[2]))
    assert list(watch.tick()) == [f"train [{DAYS[2]}]"]

    watch.steps = steps_for(0.2)

    assert stale_status(watch.definitions, instance, "train", DAYS[2]) == "STALE"
    assert list(watch.tick()) == [f"train [{DAYS[2]}]"]
    assert stale_status(watch.definitions, instance, "train", DAYS[2]) == "FRESH"


def test_dynamic_partitions_are_those_of_the_instance_at_each_tick(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    def steps_for(customer: str) -> list[StepSpec]:
        return [recorder.step("train", recorder.step("data"), hash_attrs={"customer": customer})]

    settings = {
        "partitions_def": dg.DynamicPartitionsDefinition(name="customers"),
        "example_partitions": "x",
        "unpartitioned": ["data"],
    }
    watch = Watch(instance, steps_for, settings=settings)
    for customer in ("ada", "bob"):
        build_outside(*steps_for(customer))

    assert list(watch.tick()) == ["data"]
    for customer in ("ada", "bob"):
        instance.add_dynamic_partitions("customers", [customer])
        assert list(watch.tick()) == [f"train [{customer}]"]
    (bobs,) = steps_for("bob")
    shutil.rmtree(bobs.output_path)
    assert watch.reported() == {"train [bob]": "removed"}
    instance.delete_dynamic_partition("customers", "bob")
    assert watch.tick() == {}
    assert watch.remembered == 0


def test_a_partition_being_built_elsewhere_and_one_that_failed_are_observed(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps_for = training(recorder)
    watch = Watch(instance, steps_for, settings={"partitions_def": DAILY})
    build_outside(*steps_for(DAYS[1]))
    watch.tick()
    (train,) = steps_for(DAYS[1])
    attempt = StepCache().begin(train, force=True)
    assert isinstance(attempt, Attempt)
    attempt.withdraw()

    (event,) = watch.tick().values()
    assert (event.partition, metadata_of(event)["marin/cache"]) == (DAYS[1], "running")
    assert watch.tick() == {}
    attempt.fail()
    (event,) = watch.tick().values()

    assert isinstance(event, dg.AssetObservation)
    assert (event.partition, metadata_of(event)["marin/cache"]) == (DAYS[1], "failed")
    assert watch.tick() == {}


def test_a_removed_partition_is_observed_once_and_materialized_when_it_is_back(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps_for = training(recorder)
    watch = Watch(instance, steps_for, settings={"partitions_def": DAILY})
    assert run_job(watch.definitions, instance, partition=DAYS[0]).success
    assert run_job(watch.definitions, instance, partition=DAYS[1]).success
    assert watch.tick() == {}
    (train,) = steps_for(DAYS[1])
    prep = train.deps[0]

    shutil.rmtree(prep.output_path)
    (event,) = watch.tick().values()
    assert (event.asset_key, event.partition) == (dg.AssetKey("prep"), DAYS[1])
    assert metadata_of(event)["marin/cache"] == "removed"
    assert "Nothing needs it now" in event.description
    shutil.rmtree(train.output_path)
    (event,) = watch.tick().values()
    assert "Materialize it to build it again" in event.description
    assert watch.tick() == {}

    build_outside(*steps_for(DAYS[1]))
    assert watch.reported() == {f"{name} [{DAYS[1]}]": "hit" for name in ("prep", "train")}
    assert watch.tick() == {}
    assert watch.remembered == 0


def test_a_removed_shared_output_is_needed_where_a_partition_is_not_finished(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps_for = training(recorder)
    watch = Watch(instance, steps_for, settings={"partitions_def": DAILY})
    for day in DAYS:
        build_outside(*steps_for(day))
    watch.tick()
    (unfinished,) = steps_for(DAYS[2])
    tokenizer = unfinished.deps[1]
    shutil.rmtree(tokenizer.output_path)
    shutil.rmtree(unfinished.output_path)

    events = watch.tick()

    assert list(events) == ["tokenizer", f"train [{DAYS[2]}]"]
    assert unfinished.name_with_hash in events["tokenizer"].description


@pytest.mark.parametrize("partition", [DAYS[1], (DAYS[0], DAYS[1])], ids=["one", "range"])
def test_partitions_that_a_run_builds_are_left_to_it(
    recorder: Recorder, instance: dg.DagsterInstance, partition: Any
) -> None:
    building, reported = threading.Event(), threading.Event()

    def steps_for(day: str) -> list[StepSpec]:
        def build(output_path: str) -> None:
            if day == DAYS[1]:
                building.set()
                assert reported.wait(GUARD_S)

        return [StepSpec("train", hash_attrs={"day": day}, fn=build)]

    settings = {"partitions_def": DAILY, "backfill_policy": dg.BackfillPolicy.single_run()}
    watch = Watch(instance, steps_for, settings=settings)
    deliver(*steps_for(DAYS[2]))
    definitions = watch.definitions
    run = threading.Thread(
        target=run_job, args=(definitions, instance), kwargs={"partition": partition}
    )
    run.start()
    try:
        assert building.wait(GUARD_S)
        while_running = watch.reported()
        (step,) = steps_for(DAYS[1])
        # Committed, and its event not written yet.
        Path(step.output_path, ".executor_status").write_text("SUCCESS")
        when_committed = watch.reported()
    finally:
        reported.set()
        run.join(GUARD_S)

    assert while_running == {f"train [{DAYS[2]}]": "hit"}
    assert when_committed == {}
    assert watch.tick() == {}


class _CountingCache(StepCache):
    counted: ClassVar[list[int]] = []

    def look_up_many(self, steps: Any) -> Any:
        steps = list(steps)
        self.counted.append(len(steps))
        return super().look_up_many(steps)


class Counting(MarinIOManager):
    """Counts the look-ups of its cache."""

    @property
    def cache(self) -> StepCache:
        return _CountingCache()


def test_a_tick_checks_the_newest_of_thousands_and_the_others_in_turn(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"p{number:04}" for number in range(3_000)]

    def steps_for(key: str) -> list[StepSpec]:
        prep = StepSpec("prep", hash_attrs={"key": key}, fn=print)
        train = StepSpec("train", hash_attrs={"key": key}, deps=[prep], fn=print)
        return [StepSpec("evaluate", deps=[train], fn=print)]

    settings = {"partitions_def": dg.StaticPartitionsDefinition(keys)}
    watch = Watch(instance, steps_for, settings=settings, manager=Counting())
    monkeypatch.setattr(watched_module, "_EVALUATING_S", GUARD_S)
    monkeypatch.setattr(_CountingCache, "counted", counted := [])
    statements = _statements(instance)
    at_once = watched_module.LOOK_UPS_PER_TICK // 3
    for key in ("p0000", "p1500"):
        deliver(*steps_for(key))

    found: list[str] = []
    ticks = 3_000 // (at_once - at_once // 4) + 2
    for tick in range(ticks):
        if tick == 1:
            deliver(*steps_for("p2999"))
        asked = len(statements)
        events = list(watch.tick())
        if not events:
            assert len(statements) - asked < 12
        if tick == 1:
            assert "evaluate [p2999]" in events
        found += events

    assert sorted(found) == [f"evaluate [{key}]" for key in ("p0000", "p1500", "p2999")]
    assert len(counted) == ticks
    assert max(counted) <= watched_module.LOOK_UPS_PER_TICK


def _statements(instance: dg.DagsterInstance) -> list[str]:
    from sqlalchemy import event

    found: list[str] = []
    storage: Any = instance.event_log_storage

    def note(*given: Any) -> None:
        if given[2].startswith("SELECT"):
            found.append(given[2])

    event.listen(storage._engine, "before_cursor_execute", note)
    return found


def test_changes_that_are_put_off_are_reported_before_others_have_their_turn(
    recorder: Recorder, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"p{number}" for number in range(12)]

    def steps_for(key: str) -> list[StepSpec]:
        return [recorder.step("train", hash_attrs={"key": key})]

    monkeypatch.setattr(watched_module, "LOOK_UPS_PER_TICK", 5)
    monkeypatch.setattr(sensor_module, "EVENTS_PER_TICK", 3)
    settings = {"partitions_def": dg.StaticPartitionsDefinition(keys)}
    watch = Watch(instance, steps_for, settings=settings)
    deliver(*(steps_for(key)[0] for key in keys))

    reported = [[event.partition for event in watch.tick().values()] for _ in range(6)]

    portions = [["p11", "p0", "p1"], ["p2", "p3", "p4"], ["p5", "p6", "p7"], ["p8", "p9", "p10"]]
    assert reported == [*portions, [], []]


def test_what_was_reported_is_remembered_until_the_partition_has_its_turn_again(
    recorder: Recorder, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"p{number}" for number in range(6)]

    def steps_for(key: str) -> list[StepSpec]:
        return [recorder.step("train", hash_attrs={"key": key})]

    monkeypatch.setattr(watched_module, "LOOK_UPS_PER_TICK", 3)
    settings = {"partitions_def": dg.StaticPartitionsDefinition(keys)}
    watch = Watch(instance, steps_for, settings=settings)
    (step,) = steps_for("p0")
    deliver(step)
    assert watch.reported() == {"train [p0]": "hit"}
    shutil.rmtree(step.output_path)

    reported = [watch.reported() for _ in range(8)]

    assert [events for events in reported if events] == [{"train [p0]": "removed"}]


def test_a_partition_whose_graph_is_wrong_is_named_and_the_others_are_reported(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    good = training(recorder)

    def steps_for(day: str) -> list[StepSpec]:
        return good(day) if day != DAYS[2] else [recorder.step("other")]

    build_outside(*good(DAYS[1]))
    settings = {"partitions_def": DAILY, "example_partitions": DAYS[:2]}
    watch = Watch(instance, steps_for, settings=settings)

    assert list(watch.tick()) == ["tokenizer", f"prep [{DAYS[1]}]", f"train [{DAYS[1]}]"]
    marin = MarinGraph.of(steps_for, partitions_def=DAILY, example_partitions=DAYS[:2])
    refused = watched_module.watched_steps(marin, instance).refused
    assert refused is not None
    assert list(refused) == [DAYS[2]]
    assert "have different steps" in str(refused[DAYS[2]])


def test_steps_of_a_function_without_partitions_are_those_of_the_day(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    day = [1]
    step = lambda: recorder.step("raw", hash_attrs={"day": day[0]})  # noqa: E731
    sensor = sensor_module.build_marin_cache_sensor(lambda: [step()], name="daily")

    def tick() -> list[str]:
        with dg.build_sensor_context(
            instance=instance, resources={"marin_io_manager": MarinIOManager()}
        ) as context:
            events = sensor.evaluate_tick(context).asset_events
        for event in events:
            instance.report_runless_asset_event(event)
        return [event.tags["dagster/data_version"] for event in events]

    assert tick() == []
    day[0] = 2
    build_outside(step())

    assert tick() == [step().hash_id]
    assert tick() == []


@pytest.mark.parametrize(
    ("text", "position"),
    [("{}", 0), ('{"0123456789": "removed@1"}', 0), ('{"position": 7}', 7), ("[]", 0)],
)
def test_a_cursor_of_an_earlier_release_is_readable(text: str, position: int) -> None:
    cursor = SensorCursor.parse(text)

    assert cursor.position == position
    if text != "[]":
        assert json.loads(cursor.cursor()) == json.loads(text)


class Automated(DagsterMarinTranslator):
    """Gives one step a condition."""

    def __init__(self, name: str, condition: dg.AutomationCondition) -> None:
        self._name, self._condition = name, condition

    def get_asset_spec(self, step: Any) -> dg.AssetSpec:
        spec = super().get_asset_spec(step)
        if step.name != self._name:
            return spec
        return spec.replace_attributes(automation_condition=self._condition)


def _requested(watch: Watch, cursor: Any, name: str = "train") -> tuple[set[str], Any]:
    result = dg.evaluate_automation_conditions(watch.definitions, watch.instance, cursor=cursor)
    return set(result.get_requested_partitions(dg.AssetKey(name)) or ()), result.cursor


def test_eager_below_a_found_partition_fires_once_for_that_partition(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps_for = training(recorder)
    watch = Watch(
        instance,
        steps_for,
        translator=Automated("train", dg.AutomationCondition.eager()),
        settings={"partitions_def": SWEEP},
    )
    (train,) = steps_for("0.2")
    build_outside(train.deps[1])
    assert list(watch.tick()) == ["tokenizer"]
    _, cursor = _requested(watch, None)

    build_outside(train.deps[0])
    assert list(watch.tick()) == ["prep [0.2]"]
    first, cursor = _requested(watch, cursor)
    again, cursor = _requested(watch, cursor)

    assert (first, again) == ({"0.2"}, set())
    assert run_job(watch.definitions, instance, select=["train"], partition="0.2").success
    assert watch.tick() == {}
    assert _requested(watch, cursor)[0] == set()
