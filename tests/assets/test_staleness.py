"""What Dagster thinks of an asset after a run: fresh or stale, exactly as the cache sees it."""

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from helpers.runs import Recorder, memory_instance, run_job
from marin_dagster import StepSpec, build_definitions


def _stale(definitions: dg.Definitions, instance: dg.DagsterInstance, name: str) -> StaleStatus:
    resolver = CachingStaleStatusResolver(
        instance, definitions.resolve_asset_graph(), LoadingContextForTest(instance)
    )
    return resolver.get_status(dg.AssetKey.from_user_string(name))


def test_a_changed_attribute_makes_all_below_stale_until_it_is_rebuilt(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    def definitions(version: int) -> dg.Definitions:
        raw = recorder.step("raw", hash_attrs={"version": version})
        return build_definitions([recorder.step("end", raw)])

    run_job(definitions(1), instance)
    assert _stale(definitions(1), instance, "end") == StaleStatus.FRESH
    assert _stale(definitions(2), instance, "end") == StaleStatus.STALE

    run_job(definitions(2), instance)

    assert recorder.calls == ["raw", "end"] * 2
    assert _stale(definitions(2), instance, "end") == StaleStatus.FRESH


def test_an_observed_hit_leaves_everything_fresh(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions([recorder.step("end", recorder.step("raw"))])

    for _ in range(3):
        run_job(definitions, instance)

    for name in ("raw", "end"):
        assert _stale(definitions, instance, name) == StaleStatus.FRESH


def test_a_dependent_stays_fresh_when_its_upstream_is_recorded_after_it(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    definitions = build_definitions([recorder.step("end", raw)])
    with memory_instance() as elsewhere:
        run_job(definitions, elsewhere, select=["raw"])

    assert run_job(definitions, instance, select=["end"]).success
    assert run_job(definitions, instance, select=["raw"]).success

    assert recorder.calls == ["raw", "end"]
    assert _stale(definitions, instance, "end") == StaleStatus.FRESH


def test_a_dependent_of_external_data_is_fresh_after_it_is_built(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = StepSpec("raw/dump")
    Path(raw.output_path).mkdir(parents=True)
    Path(raw.output_path, ".executor_status").write_text("SUCCESS")
    definitions = build_definitions([recorder.step("clean", raw)])

    assert run_job(definitions, instance).success

    assert _stale(definitions, instance, "clean") == StaleStatus.FRESH


@pytest.mark.filterwarnings("ignore:Parameter `include_sources`")
def test_eager_assets_downstream_fire_after_a_build_and_not_after_a_hit(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    @dg.asset(deps=["raw"], automation_condition=dg.AutomationCondition.eager())
    def dashboard() -> None:
        pass

    definitions = dg.Definitions.merge(
        build_definitions([recorder.step("raw")]), dg.Definitions(assets=[dashboard])
    )
    run_job(definitions, instance)
    dg.materialize([dashboard], instance=instance, selection="dashboard")

    def requested(cursor: object) -> tuple[int, object]:
        result = dg.evaluate_automation_conditions(definitions, instance=instance, cursor=cursor)
        return result.total_requested, result.cursor

    _, cursor = requested(None)
    assert run_job(definitions, instance).observed() == ["raw"]
    after_hit, cursor = requested(cursor)
    run_job(definitions, instance, config={"force": True})
    after_build, _ = requested(cursor)

    assert (after_hit, after_build) == (0, 1)
