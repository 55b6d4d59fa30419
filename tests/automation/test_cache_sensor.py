"""The cache sensor: what others built in the store becomes known, once, and with true versions."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import StaleStatus

from helpers.runs import Recorder, memory_instance, metadata_of, run_job
from helpers.sensor_ticks import SENSOR, Watch, build_outside
from marin_dagster import (
    DagsterMarinTranslator,
    MarinDagsterError,
    StepSpec,
    build_definitions,
    build_marin_cache_sensor,
)
from marin_dagster.automation import cache_sensor as sensor_module


def _deliver(step: StepSpec) -> None:
    folder = Path(step.output_path)
    folder.mkdir(parents=True)
    (folder / ".executor_status").write_text("SUCCESS")


def test_outputs_built_outside_are_materialized_once_with_their_builder(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw", result={"rows": 7})
    end = recorder.step("end", raw)
    build_outside(end)
    watch = Watch(instance, [end])

    events = watch.tick()

    assert list(events) == ["raw", "end"]
    for step in (raw, end):
        made = events[step.name]
        assert isinstance(made, dg.AssetMaterialization)
        metadata = metadata_of(made)
        assert metadata["marin/cache"] == "hit"
        assert metadata["marin/output_path"] == step.output_path
        assert metadata["marin/built_by"]
        assert metadata["marin/built_at"] > 0
        assert "marin/commit" in metadata
    assert metadata_of(events["raw"])["rows"] == 7
    assert watch.tick() == {}
    assert (watch.stale("raw"), watch.stale("end")) == (StaleStatus.FRESH, StaleStatus.FRESH)


def test_the_versions_are_those_that_a_run_records_of_the_same_hit(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    end = recorder.step("end", raw)
    build_outside(end)
    with memory_instance() as elsewhere:
        by_run = run_job(build_definitions([end]), elsewhere).materialized()

    by_sensor = Watch(instance, [end]).tick()

    for name in ("raw", "end"):
        recorded = by_run[name].tags or {}
        # A run points to the event that it read from.
        pointers = {key: "NULL" for key in recorded if "input_event_pointer" in key}
        assert by_sensor[name].tags == {**recorded, **pointers}
        facts = metadata_of(by_run[name])
        sizes = {"marin/files", "marin/bytes"}
        assert metadata_of(by_sensor[name]) == {
            key: facts[key] for key in facts if key not in sizes
        }


def test_an_empty_store_has_nothing_to_tell_and_is_not_touched(
    recorder: Recorder, instance: dg.DagsterInstance, store: Path
) -> None:
    watch = Watch(instance, [recorder.step("raw")])

    data = watch.evaluate()

    assert data.asset_events == []
    assert "1 step checked: nothing new" in data.skip_message
    assert not store.exists()


def test_what_this_instance_built_is_no_news(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    watch = Watch(instance, [recorder.step("end", recorder.step("raw"))])
    run_job(watch.definitions, instance)

    assert watch.tick() == {}


def test_a_dependent_of_an_upstream_that_was_picked_up_is_fresh_and_stays_so(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    end = recorder.step("end", raw)
    build_outside(raw)
    watch = Watch(instance, [end])
    # The instance builds the dependent before it has ever heard of the upstream.
    assert run_job(watch.definitions, instance, select=["end"]).success

    assert watch.reported() == {"raw": "hit"}

    assert recorder.calls == ["raw", "end"]
    assert (watch.stale("raw"), watch.stale("end")) == (StaleStatus.FRESH, StaleStatus.FRESH)


def test_a_new_version_built_outside_makes_what_is_not_built_stale(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    def steps(version: int) -> tuple[StepSpec, StepSpec]:
        raw = recorder.step("raw", hash_attrs={"version": version})
        return raw, recorder.step("end", raw)

    run_job(build_definitions([steps(1)[1]]), instance)
    raw, end = steps(2)
    watch = Watch(instance, [end])
    assert watch.tick() == {}
    assert watch.stale("raw") == StaleStatus.STALE

    build_outside(raw)
    assert watch.reported() == {"raw": "hit"}
    assert (watch.stale("raw"), watch.stale("end")) == (StaleStatus.FRESH, StaleStatus.STALE)

    build_outside(end)
    assert watch.reported() == {"end": "hit"}
    assert watch.stale("end") == StaleStatus.FRESH


def test_a_run_after_the_tick_observes_and_builds_nothing(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    end = recorder.step("end", recorder.step("raw"))
    build_outside(end)
    watch = Watch(instance, [end])
    watch.tick()

    run = run_job(watch.definitions, instance)

    assert run.observed() == ["end", "raw"]
    assert run.materialized() == {}
    assert watch.tick() == {}


def test_ordinary_assets_beside_the_steps_count_as_inputs(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    class Translator(DagsterMarinTranslator):
        def get_asset_spec(self, step: Any) -> dg.AssetSpec:
            return super().get_asset_spec(step).merge_attributes(deps=["settings", "never_made"])

    @dg.asset
    def settings() -> None:
        pass

    @dg.asset
    def never_made() -> None:
        pass

    step = recorder.step("raw")
    build_outside(step)
    dg.materialize([settings], instance=instance)
    watch = Watch(instance, [step], others=(settings, never_made), translator=Translator())

    assert watch.reported() == {"raw": "hit"}
    assert watch.stale("raw") == StaleStatus.FRESH


def test_external_data_is_reported_and_its_dependents_stay_fresh(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = StepSpec("raw/dump")
    clean = recorder.step("clean", raw)
    _deliver(raw)

    @dg.asset(deps=[["raw", "dump"]])
    def report() -> None:
        pass

    watch = Watch(instance, [clean], others=(report,))
    run_job(watch.definitions, instance)
    dg.materialize([report], instance=instance, selection=["report"])

    assert watch.reported() == {"raw/dump": "hit"}
    assert watch.tick() == {}

    for name in ("raw/dump", "clean", "report"):
        assert watch.stale(name) == StaleStatus.FRESH
    # What is built from now on is fresh, too.
    run_job(watch.definitions, instance, config={"force": True})
    assert watch.tick() == {}
    assert watch.stale("clean") == StaleStatus.FRESH


def test_another_version_of_external_data_makes_its_dependents_stale(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    @dg.asset(deps=[["raw", "dump"]])
    def report() -> None:
        pass

    old, new = (StepSpec("raw/dump", hash_attrs={"year": year}) for year in (2024, 2025))
    for step in (old, new):
        _deliver(step)
    Watch(instance, [old], others=(report,)).tick()
    dg.materialize([report], instance=instance, selection=["report"])
    watch = Watch(instance, [new], others=(report,))
    assert watch.stale("report") == StaleStatus.FRESH

    assert watch.reported() == {"raw/dump": "hit"}

    assert watch.stale("report") == StaleStatus.STALE
    assert watch.tick() == {}


def test_a_dependent_built_outside_from_external_data_is_fresh(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = StepSpec("raw/dump")
    _deliver(raw)
    clean = recorder.step("clean", raw)
    build_outside(clean)
    watch = Watch(instance, [clean])

    assert watch.reported() == {"raw/dump": "hit", "clean": "hit"}

    assert watch.stale("clean") == StaleStatus.FRESH


def test_a_first_look_at_many_outputs_is_told_in_portions(
    recorder: Recorder, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensor_module, "EVENTS_PER_TICK", 3)
    chain: list[StepSpec] = []
    for index in range(7):
        chain.append(recorder.step(f"s{index}", *chain[-1:]))
    build_outside(chain[-1])
    watch = Watch(instance, chain)

    portions = [list(watch.tick()) for _ in range(4)]

    assert portions == [["s0", "s1", "s2"], ["s3", "s4", "s5"], ["s6"], []]
    assert {watch.stale(step.name) for step in chain} == {StaleStatus.FRESH}


def test_a_tick_without_news_asks_as_little_of_a_hundred_steps_as_of_one(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    statements: list[str] = []
    storage: Any = instance.event_log_storage

    def count(steps: list[StepSpec]) -> int:
        for step in steps:
            _deliver(step)
        watch = Watch(instance, steps)
        watch.tick()
        engine = storage._engine
        from sqlalchemy import event

        def note(*args: Any) -> None:
            statements.append(args[2])

        event.listen(engine, "before_cursor_execute", note)
        try:
            statements.clear()
            assert watch.tick() == {}
            return len(statements)
        finally:
            event.remove(engine, "before_cursor_execute", note)

    one = count([recorder.step("alone")])
    hundred = count([recorder.step(f"s{index}") for index in range(100)])

    assert one == hundred


def test_a_resource_that_is_no_io_manager_of_ours_is_named(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    sensor = build_marin_cache_sensor([recorder.step("raw")], name="mine", io_manager_key="other")
    context = dg.build_sensor_context(instance=instance, resources={"other": "nothing"})

    with context, pytest.raises(MarinDagsterError, match=r"'mine'.*'other'.*MarinIOManager"):
        sensor.evaluate_tick(context)


def test_the_sensor_is_asked_for_in_one_word_and_once_for_each_graph(recorder: Recorder) -> None:
    one = build_definitions([recorder.step("one")], cache_sensor=True)
    two = build_definitions(iter([recorder.step("two")]), cache_sensor=True, job_name="other")

    repository = dg.Definitions.merge(one, two).get_repository_def()

    assert {sensor.name for sensor in repository.sensor_defs} == {SENSOR, "other_cache_sensor"}
    assert build_definitions([recorder.step("none")]).sensors == []
