"""Ordinary Dagster assets and ops beside our steps, in one job under our executor."""

from pathlib import Path
from typing import Any

import dagster as dg

from helpers.runs import Recorder, metadata_of, run_job, status_of
from marin_dagster import (
    DagsterMarinTranslator,
    MarinIOManager,
    StepLike,
    build_marin_assets,
    marin_executor,
)


def _definitions(*assets: Any) -> dg.Definitions:
    return dg.Definitions(
        assets=assets,
        resources={"marin_io_manager": MarinIOManager(), "io_manager": dg.mem_io_manager},
        jobs=[
            dg.define_asset_job(
                "mixed", selection=dg.AssetSelection.all(), executor_def=marin_executor
            )
        ],
    )


def _reader(recorder: Recorder, name: str, dep: str, *, fails: bool = False) -> Any:
    """An ordinary asset that receives the output of ``dep``."""

    @dg.asset(name=name, ins={"upstream": dg.AssetIn(dep)})
    def reader(upstream: Any) -> str:
        recorder.calls.append(name)
        if fails:
            raise RuntimeError(f"{name} fails on purpose")
        return name

    return reader


class AfterLicence(DagsterMarinTranslator):
    """Makes the step ``raw`` depend on the ordinary asset ``licence``."""

    def get_asset_spec(self, step: StepLike) -> dg.AssetSpec:
        spec = super().get_asset_spec(step)
        if step.name != "raw":
            return spec
        return spec.replace_attributes(deps=[*spec.deps, dg.AssetDep("licence")])


def _licence(recorder: Recorder, *, fails: bool = False) -> dg.AssetsDefinition:
    @dg.asset
    def licence() -> str:
        recorder.calls.append("licence")
        if fails:
            raise RuntimeError("no licence")
        return "MIT"

    return licence


def test_ordinary_assets_up_and_downstream_of_ours_run_in_order(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    assets = build_marin_assets([recorder.step("end", raw)], translator=AfterLicence())
    definitions = _definitions(*assets, _licence(recorder), _reader(recorder, "report", "end"))

    run = run_job(definitions, instance, job="mixed")

    assert run.success
    assert recorder.calls == ["licence", "raw", "end", "report"]
    assert set(run.materialized()) == {"licence", "raw", "end", "report"}


def test_ordinary_assets_always_run_while_ours_are_served(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    assets = build_marin_assets([recorder.step("end", raw)], translator=AfterLicence())
    definitions = _definitions(*assets, _licence(recorder), _reader(recorder, "report", "end"))
    run_job(definitions, instance, job="mixed")
    recorder.take()

    run = run_job(definitions, instance, job="mixed")

    assert run.success
    assert sorted(recorder.calls) == ["licence", "report"]
    assert run.observed() == ["end", "raw"]
    assert set(run.materialized()) == {"licence", "report"}


def test_an_ordinary_asset_forces_the_uncached_step_that_it_reads(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    top = recorder.step("top")
    raw = recorder.step("raw", top)
    clean = recorder.step("clean", raw)
    end = recorder.step("end", clean)
    definitions = _definitions(*build_marin_assets([end]), _reader(recorder, "report", "raw"))
    run_job(definitions, instance, job="mixed", select=["top", "raw", "clean", "end"])
    for step in (top, raw, clean):
        Path(step.output_path, ".executor_status").unlink()
    recorder.take()

    run = run_job(definitions, instance, job="mixed")

    assert run.success
    assert recorder.calls == ["top", "raw", "report"]
    assert set(run.skipped()) == {"clean"}
    assert status_of(clean) is None


def test_without_the_ordinary_asset_the_same_steps_are_pruned(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    end = recorder.step("end", raw)
    definitions = _definitions(*build_marin_assets([end]), _reader(recorder, "report", "raw"))
    run_job(definitions, instance, job="mixed", select=["raw", "end"])
    Path(raw.output_path, ".executor_status").unlink()
    recorder.take()

    run = run_job(definitions, instance, job="mixed", select=["raw", "end"])

    assert run.success
    assert recorder.calls == []
    assert set(run.skipped()) == {"raw"}


def test_an_ordinary_asset_below_a_failed_step_does_not_run(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    broken = recorder.step("broken", fails=True)
    definitions = _definitions(
        *build_marin_assets([broken]),
        _reader(recorder, "report", "broken"),
        _reader(recorder, "summary", "report"),
        _licence(recorder),
    )

    run = run_job(definitions, instance, job="mixed")

    assert not run.success
    assert sorted(recorder.calls) == ["broken", "licence"]
    assert run.steps("STEP_FAILURE") == ["broken"]


def test_a_step_below_a_failed_ordinary_asset_does_not_run_and_has_no_folder(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    definitions = _definitions(
        *build_marin_assets([raw], translator=AfterLicence()), _licence(recorder, fails=True)
    )

    run = run_job(definitions, instance, job="mixed")

    assert not run.success
    assert recorder.calls == ["licence"]
    assert run.steps("STEP_FAILURE") == ["licence"]
    assert not Path(raw.output_path).exists()


def test_ordinary_assets_below_a_blocked_step_do_not_run_and_others_do(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    end = recorder.step("end", recorder.step("raw"))
    definitions = _definitions(
        *build_marin_assets([end]),
        _reader(recorder, "report", "end"),
        _reader(recorder, "summary", "report"),
        _licence(recorder),
    )

    run = run_job(
        definitions, instance, job="mixed", select=["end", "report", "summary", "licence"]
    )

    assert not run.success
    assert run.steps("STEP_FAILURE") == ["end"]
    assert recorder.calls == ["licence"]


def test_a_failing_ordinary_asset_does_not_spoil_the_step_that_it_reads(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    definitions = _definitions(
        *build_marin_assets([raw]), _reader(recorder, "report", "raw", fails=True)
    )

    run = run_job(definitions, instance, job="mixed")

    assert run.steps("STEP_FAILURE") == ["report"]
    assert metadata_of(run.materialized()["raw"])["marin/cache"] == "built"
    assert status_of(raw) == "SUCCESS"


def test_steps_of_two_separate_graphs_are_pruned_and_served_each_in_its_own(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    first = [recorder.step("a_end", recorder.step("a_raw"))]
    second = [recorder.step("b_end", recorder.step("b_raw"))]
    definitions = _definitions(*build_marin_assets(first), *build_marin_assets(second))
    assert run_job(definitions, instance, job="mixed").success
    for end in (*first, *second):
        Path(end.deps[0].output_path, ".executor_status").unlink()
    recorder.take()

    run = run_job(definitions, instance, job="mixed")

    assert run.success
    assert recorder.calls == []
    assert set(run.skipped()) == {"a_raw", "b_raw"}
    assert run.observed() == ["a_end", "b_end"]
