"""Graphs that people really have: awkward names, a broken store among many, steps in between."""

import asyncio
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.cache import finish
from helpers.runs import Recorder, run_job
from marin_dagster import (
    DagsterMarinTranslator,
    MarinDagsterWarning,
    StepSpec,
    build_definitions,
    build_marin_assets,
    marin_executor,
)
from marin_dagster.errors import GraphError


@pytest.mark.parametrize("name", ["config", "input", "context", "class", "dict", "import/a"])
def test_a_step_may_be_called_what_dagster_and_python_reserve(
    name: str, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    run = run_job(build_definitions([recorder.step(name)]), instance)
    assert run.success
    assert list(run.materialized()) == [name]


def test_partitions_are_refused_with_the_steps_name() -> None:
    class Partitioned(DagsterMarinTranslator):
        def get_asset_spec(self, step: Any) -> dg.AssetSpec:
            days = dg.DailyPartitionsDefinition("2026-01-01")
            return super().get_asset_spec(step).replace_attributes(partitions_def=days)

    with pytest.raises(GraphError, match=r"'raw'.*partitions"):
        build_marin_assets([StepSpec("raw", fn=print)], translator=Partitioned())


def test_a_step_instead_of_a_list_is_an_error_that_says_so(recorder: Recorder) -> None:
    with pytest.raises(GraphError, match="list of steps"):
        build_definitions(recorder.step("raw"))  # type: ignore[arg-type]


def test_two_functions_under_one_identity_are_warned_of(recorder: Recorder) -> None:
    def train(output_path: str) -> None: ...
    def evaluate(output_path: str) -> None: ...

    with pytest.warns(MarinDagsterWarning, match=r"train.*evaluate.*only the first"):
        build_definitions([StepSpec("train", fn=train), StepSpec("train", fn=evaluate)])


def test_one_function_written_once_is_no_reason_to_warn(recorder: Recorder) -> None:
    build_definitions([recorder.step("raw"), recorder.step("raw")])


def test_external_data_in_the_middle_hides_what_lies_above_it(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    above = recorder.step("above")
    middle = StepSpec("middle", deps=[above])
    finish(middle)

    run = run_job(build_definitions([recorder.step("below", middle)]), instance)

    assert run.success
    assert recorder.take() == ["below"]
    assert run.steps("STEP_SKIPPED") == ["above"]


def test_a_dev_version_that_is_built_can_be_read_without_selecting_it(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    dev = recorder.step("dev", hash_attrs={"fingerprint": "abcd", "version": "dev"})
    definitions = build_definitions([recorder.step("reader", dev)])
    finish(dev)

    assert run_job(definitions, instance, select=["reader"]).success
    assert recorder.take() == ["reader"]


def test_a_broken_store_fails_its_own_step_and_not_the_others(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    above = recorder.step("above")
    broken = recorder.step("broken", above, override_output_path="nosuch://bucket/x")
    definitions = build_definitions([recorder.step("below", broken), recorder.step("fine")])

    run = run_job(definitions, instance)

    assert not run.success
    assert run.steps("STEP_FAILURE") == ["broken"]
    assert "nosuch://bucket/x" in run.error("broken")
    assert recorder.take() == ["fine"]


def test_async_assets_beside_steps_each_have_a_loop(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    def waiting(name: str) -> dg.AssetsDefinition:
        @dg.asset(name=name)
        async def asset() -> int:
            await asyncio.sleep(0.05)
            return 1

        return asset

    job = dg.define_asset_job("mixed", executor_def=marin_executor)
    definitions = dg.Definitions(
        assets=[waiting("one"), waiting("two"), waiting("three")],
        resources={"io_manager": dg.mem_io_manager},
        jobs=[job],
    )
    assert run_job(definitions, instance, job="mixed").success


def test_a_coroutine_is_an_error_that_says_why_nothing_happened(
    instance: dg.DagsterInstance,
) -> None:
    async def build(output_path: str) -> None: ...

    run = run_job(build_definitions([StepSpec("raw", fn=build)]), instance)  # type: ignore[arg-type]

    assert "async, so its body never ran" in run.error("raw")


def test_a_finished_output_with_a_broken_record_is_served(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw")
    finish(step)
    Path(step.output_path, ".artifact.json").write_text("garbage")

    run = run_job(build_definitions([step]), instance)

    assert run.success
    assert recorder.take() == []
    assert run.materialized()["raw"].metadata["marin/cache"].value == "hit"
