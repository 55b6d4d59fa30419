"""Steps without a function: external assets, whose dependents wait for data that others make."""

from pathlib import Path

import dagster as dg

from helpers.runs import Recorder, run_job, status_of
from marin_dagster import (
    MarinIOManager,
    StepSpec,
    build_definitions,
    build_marin_assets,
    marin_executor,
)


def _deliver(step: StepSpec) -> None:
    folder = Path(step.output_path)
    folder.mkdir(parents=True)
    (folder / "dump.txt").write_text("delivered")
    (folder / ".executor_status").write_text("SUCCESS")


def test_a_step_without_a_function_is_an_external_asset_with_the_same_description() -> None:
    raw = StepSpec("raw/dump", hash_attrs={"year": 2024})

    (spec,) = build_marin_assets([raw])
    node = build_definitions([raw]).resolve_asset_graph().get(dg.AssetKey(["raw", "dump"]))

    assert isinstance(spec, dg.AssetSpec)
    assert spec.metadata["dagster/uri"] == raw.output_path
    assert spec.code_version == raw.hash_id
    assert node.is_external
    assert not node.is_materializable


def test_it_is_upstream_of_its_dependents_in_the_asset_graph(recorder: Recorder) -> None:
    raw = StepSpec("raw/dump")
    definitions = build_definitions([recorder.step("clean", raw)])

    graph = definitions.resolve_asset_graph()

    assert graph.get(dg.AssetKey("clean")).parent_keys == {dg.AssetKey(["raw", "dump"])}


def test_dependents_fail_at_once_and_say_what_is_missing(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = StepSpec("raw/dump")
    clean = recorder.step("clean", raw)
    end = recorder.step("end", clean)
    other = recorder.step("other")

    run = run_job(build_definitions([end, other]), instance)

    assert not run.success
    assert recorder.calls == ["other"]
    assert run.steps("STEP_FAILURE") == ["clean"]
    assert clean.name_with_hash in run.error("clean")
    assert raw.output_path in run.error("clean")
    assert "'raw/dump'" in run.error("clean")
    assert "status" in run.error("clean")
    assert not Path(clean.output_path).exists()
    assert not Path(end.output_path).exists()


def test_dependents_run_once_data_with_success_is_there(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = StepSpec("raw/dump")
    clean = recorder.step("clean", raw)
    definitions = build_definitions([clean])
    assert not run_job(definitions, instance).success
    _deliver(raw)

    run = run_job(definitions, instance)

    assert run.success
    assert recorder.calls == ["clean"]
    assert status_of(clean) == "SUCCESS"


def test_data_without_success_is_not_enough(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = StepSpec("raw/dump")
    _deliver(raw)
    Path(raw.output_path, ".executor_status").write_text("RUNNING")

    run = run_job(build_definitions([recorder.step("clean", raw)]), instance)

    assert not run.success
    assert recorder.calls == []


def test_a_built_dependent_is_served_although_the_external_data_is_gone(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = StepSpec("raw/dump")
    definitions = build_definitions([recorder.step("clean", raw)])
    _deliver(raw)
    run_job(definitions, instance)
    Path(raw.output_path, ".executor_status").unlink()

    run = run_job(definitions, instance)

    assert run.success
    assert recorder.calls == ["clean"]


def test_an_ordinary_asset_reads_external_data_through_the_io_manager(
    instance: dg.DagsterInstance,
) -> None:
    raw = StepSpec("raw")
    _deliver(raw)

    @dg.asset
    def words(raw: str) -> str:
        return Path(raw, "dump.txt").read_text()

    job = dg.define_asset_job("words_job", selection="words", executor_def=marin_executor)
    definitions = dg.Definitions(
        assets=[*build_marin_assets([raw]), words],
        resources={"marin_io_manager": MarinIOManager(), "io_manager": dg.mem_io_manager},
        jobs=[job],
    )

    run = run_job(definitions, instance, job="words_job")

    assert run.success
