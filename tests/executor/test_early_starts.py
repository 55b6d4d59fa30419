"""``require_upstream_step_success: false``: a step starts when what it reads is stored."""

import threading
from typing import Any

import dagster as dg

from helpers.runs import Recorder, Run, run_job
from marin_dagster import MarinIOManager, build_marin_assets, marin_executor

CHANCE_S = 0.5
"""How long storing takes, so that a step that starts too early has the time to show it."""


def _run(instance: dg.DagsterInstance, *assets: Any, **resources: Any) -> Run:
    job = dg.define_asset_job(
        "early", selection=dg.AssetSelection.all(), executor_def=marin_executor
    )
    defaults = {"marin_io_manager": MarinIOManager(), "io_manager": dg.mem_io_manager}
    return run_job(
        dg.Definitions(assets=assets, resources=defaults | resources, jobs=[job]),
        instance,
        job="early",
        config={"step_dependency_config": {"require_upstream_step_success": False}},
    )


def test_a_step_starts_while_the_step_that_it_reads_still_runs(
    instance: dg.DagsterInstance,
) -> None:
    reader_runs = threading.Event()

    @dg.multi_asset(outs={"early": dg.AssetOut(), "late": dg.AssetOut()})
    def both() -> Any:
        yield dg.Output(1, output_name="early")
        assert reader_runs.wait(60)
        yield dg.Output(2, output_name="late")

    @dg.asset(deps=["early"])
    def reader() -> None:
        reader_runs.set()

    run = _run(instance, both, reader)

    assert run.success
    assert set(run.materialized()) == {"early", "late", "reader"}


def test_a_step_does_not_load_an_output_before_it_is_stored(instance: dg.DagsterInstance) -> None:
    asked = threading.Event()
    stored: dict[str, Any] = {}

    class SlowStore(dg.IOManager):
        """Takes its time, and is asked by whoever comes too early."""

        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
            # What it says first opens the step's log, which is an event of its own.
            print("storing")
            asked.wait(CHANCE_S)
            stored[context.asset_key.to_user_string()] = obj

        def load_input(self, context: dg.InputContext) -> Any:
            asked.set()
            return stored[context.asset_key.to_user_string()]

    received = []

    @dg.asset
    def table() -> int:
        return 1

    @dg.asset
    def reader(table: int) -> None:
        received.append(table)

    run = _run(instance, table, reader, io_manager=SlowStore())

    assert run.success
    assert received == [1]


def test_a_step_of_ours_does_not_begin_before_its_dependency_is_committed(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    class SlowCommit(MarinIOManager):
        """Takes its time before it commits."""

        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
            threading.Event().wait(CHANCE_S)
            super().handle_output(context, obj)

    end = recorder.step("end", recorder.step("raw"))

    run = _run(instance, *build_marin_assets([end]), marin_io_manager=SlowCommit())

    assert run.success
    assert recorder.calls == ["raw", "end"]


def test_a_step_starts_although_what_it_reads_was_built_in_an_earlier_run(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    run = _run(instance, *build_marin_assets([raw]))
    assert run.success

    run = _run(instance, *build_marin_assets([recorder.step("end", raw)]))

    assert run.success
    assert recorder.take() == ["raw", "end"]
