"""What the IO manager refuses: results that do not fit, and assets that are no steps."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import BaseModel

from helpers.runs import Recorder, Run, is_locked, run_job, status_of
from marin_dagster import (
    MarinIOManager,
    StepSpec,
    build_definitions,
    build_marin_assets,
    marin_executor,
)


class Scores(BaseModel):
    """What the readers here ask for."""

    perplexity: float


def _run(instance: dg.DagsterInstance, *assets: Any) -> Run:
    job = dg.define_asset_job(
        "mixed", selection=dg.AssetSelection.all(), executor_def=marin_executor
    )
    definitions = dg.Definitions(
        assets=assets,
        resources={"marin_io_manager": MarinIOManager(), "io_manager": dg.mem_io_manager},
        jobs=[job],
    )
    return run_job(definitions, instance, job="mixed")


@pytest.mark.parametrize(
    ("result", "complaint"),
    [({"tokens": 7}, "perplexity"), ({"perplexity": "low"}, "perplexity"), (None, "no result")],
)
def test_a_result_that_is_not_the_annotated_model_is_an_error_naming_step_and_path(
    result: Any, complaint: str, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus", result=result)

    @dg.asset
    def reader(corpus: Scores) -> None:
        raise AssertionError("must not run")

    run = _run(instance, *build_marin_assets([step]), reader)

    assert not run.success
    for text in ("OutputNotReadyError", step.name_with_hash, step.output_path, "Scores", complaint):
        assert text in run.error("reader")


def test_a_record_that_cannot_be_read_is_an_error_naming_the_file(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus")
    Path(step.output_path).mkdir(parents=True)
    Path(step.output_path, ".executor_status").write_text("SUCCESS")
    Path(step.output_path, ".artifact.json").write_text("{half")

    @dg.asset
    def reader(corpus: dict) -> None:  # type: ignore[type-arg]
        raise AssertionError("must not run")

    job = dg.define_asset_job("read", selection="reader", executor_def=marin_executor)
    definitions = dg.Definitions.merge(
        build_definitions([step]), dg.Definitions(assets=[reader], jobs=[job])
    )
    run = run_job(definitions, instance, job="read")

    assert not run.success
    assert f"{step.output_path}/.artifact.json" in run.error("reader")


def test_a_path_annotation_on_an_output_elsewhere_asks_for_str(
    recorder: Recorder, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_PREFIX", f"memory://{recorder!r}/store")
    step = StepSpec("corpus", fn=lambda output_path: None)

    @dg.asset
    def reader(corpus: Path) -> None:
        raise AssertionError("must not run")

    run = _run(instance, *build_marin_assets([step]), reader)

    assert run.steps("STEP_FAILURE") == ["reader"]
    assert step.output_path in run.error("reader")
    assert "str" in run.error("reader")


def test_an_ordinary_asset_that_stores_through_our_io_manager_is_told_to_use_another(
    instance: dg.DagsterInstance,
) -> None:
    @dg.asset(io_manager_key="marin_io_manager")
    def table() -> list[int]:
        return [1]

    run = _run(instance, table)

    assert not run.success
    for text in ("'table'", "list", "io_manager_key"):
        assert text in run.error("table")


def test_an_ordinary_asset_that_is_read_through_our_io_manager_is_told_so(
    instance: dg.DagsterInstance,
) -> None:
    @dg.asset
    def table() -> list[int]:
        return [1]

    @dg.asset(ins={"table": dg.AssetIn(input_manager_key="marin_io_manager")})
    def reader(table: Any) -> None:
        raise AssertionError("must not run")

    run = _run(instance, table, reader)

    assert not run.success
    assert "asset 'table': MarinIOManager loads the outputs of" in run.error("reader")
    assert "the IO manager that stored it" in run.error("reader")


@pytest.mark.parametrize("result", [{"x": object()}, 7, "text", [1], {"nested": {"s": {object()}}}])
def test_a_result_that_a_record_cannot_hold_fails_the_step(
    result: Any, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus", result=result)
    below = recorder.step("below", step)

    run = run_job(build_definitions([below]), instance)

    assert not run.success
    assert recorder.calls == ["corpus"]
    assert run.steps("STEP_FAILURE") == ["corpus"]
    for text in ("ResultError", step.name_with_hash, step.output_path):
        assert text in run.error("corpus")
    assert status_of(step) == "FAILED"
    assert not is_locked(step)
    assert not Path(step.output_path, ".artifact.json").exists()


def test_a_record_that_the_disk_refuses_fails_the_step_and_never_marks_success(
    instance: dg.DagsterInstance,
) -> None:
    def build(output_path: str) -> None:
        Path(output_path, ".artifact.json", "in the way").mkdir(parents=True)

    step = StepSpec("corpus", fn=build)

    run = run_job(build_definitions([step]), instance)

    assert not run.success
    assert "StoreError" in run.error("corpus")
    assert f"{step.output_path}/.artifact.json" in run.error("corpus")
    assert run.materialized() == {}
    assert status_of(step) == "FAILED"
    assert not is_locked(step)


def test_a_filesystem_that_cannot_be_opened_fails_its_own_step_only(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps = [
        recorder.step("good"),
        recorder.step("bad", output_path_prefix="ftp://127.0.0.1:1/store"),
    ]

    run = run_job(build_definitions(steps), instance)

    assert not run.success
    assert recorder.calls == ["good"]
    assert "no filesystem for ftp://127.0.0.1:1/store" in run.error("bad")
