"""What our executor must do like any executor of Dagster: ops, dynamic outputs, hooks, checks."""

from pathlib import Path
from typing import Any

import dagster as dg

from helpers.runs import Recorder, run_job
from marin_dagster import MarinIOManager, StepSpec, build_marin_assets, marin_executor


def _definitions(*assets: Any, **more: Any) -> dg.Definitions:
    return dg.Definitions(
        assets=assets,
        resources={"marin_io_manager": MarinIOManager(), "io_manager": dg.mem_io_manager},
        jobs=[
            dg.define_asset_job(
                "mixed",
                selection=dg.AssetSelection.all(),
                executor_def=marin_executor,
                hooks=more.pop("hooks", None),
            )
        ],
        **more,
    )


def _below(recorder: Recorder, name: str) -> dg.AssetsDefinition:
    @dg.asset(name=f"below_{name}", ins={"upstream": dg.AssetIn(name)})
    def below(upstream: Any) -> None:
        recorder.calls.append(f"below_{name}")

    return below


def test_ops_without_any_asset_run_under_our_executor(instance: dg.DagsterInstance) -> None:
    @dg.op
    def one() -> int:
        return 1

    @dg.op
    def add_one(number: int) -> int:
        return number + 1

    received = []

    @dg.op
    def receive(number: int) -> None:
        received.append(number)

    @dg.job(executor_def=marin_executor, resource_defs={"io_manager": dg.mem_io_manager})
    def plain() -> None:
        receive(add_one(one()))

    run = run_job(dg.Definitions(jobs=[plain]), instance, job="plain")

    assert run.success
    assert received == [2]
    assert run.steps("STEP_SUCCESS") == ["add_one", "one", "receive"]


def test_a_multi_asset_with_an_optional_output_skips_what_lies_below_it(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    @dg.multi_asset(outs={"left": dg.AssetOut(is_required=False), "right": dg.AssetOut()})
    def both() -> Any:
        yield dg.Output(1, output_name="right")

    raw = StepSpec("raw", fn=lambda output_path: None)
    definitions = _definitions(
        *build_marin_assets([raw]),
        both,
        _below(recorder, "left"),
        _below(recorder, "right"),
    )

    run = run_job(definitions, instance, job="mixed")

    assert run.success
    assert recorder.calls == ["below_right"]
    assert set(run.skipped()) == {"below_left"}


def _fan_out(received: list[int]) -> Any:
    @dg.op(out=dg.DynamicOut())
    def spread() -> Any:
        for number in range(3):
            yield dg.DynamicOutput(number, mapping_key=str(number))

    @dg.op
    def double(number: int) -> int:
        received.append(number)
        return 2 * number

    @dg.op
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @dg.graph_asset
    def fanned() -> Any:
        return total(spread().map(double).collect())

    return fanned


def test_dynamic_outputs_fan_out_beside_steps_that_are_pruned_and_served(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    received: list[int] = []
    raw = recorder.step("raw")
    end = recorder.step("end", raw)
    definitions = _definitions(*build_marin_assets([end]), _fan_out(received))

    first = run_job(definitions, instance, job="mixed")
    Path(raw.output_path, ".executor_status").unlink()
    second = run_job(definitions, instance, job="mixed")

    assert first.success
    assert second.success
    assert recorder.calls == ["raw", "end"]
    assert set(second.skipped()) == {"raw"}
    assert sorted(received) == [0, 0, 1, 1, 2, 2]
    assert set(second.materialized()) == {"fanned"}


def test_hooks_fire_for_steps_that_succeed_and_for_steps_that_fail(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    fired: list[str] = []

    @dg.success_hook
    def cheer(context: dg.HookContext) -> None:
        fired.append(f"{context.op.name} succeeded")

    @dg.failure_hook
    def mourn(context: dg.HookContext) -> None:
        fired.append(f"{context.op.name} failed: {context.op_exception}")

    steps = [recorder.step("good"), recorder.step("bad", fails=True)]
    definitions = _definitions(*build_marin_assets(steps), hooks={cheer, mourn})

    run_job(definitions, instance, job="mixed")

    assert sorted(fired) == ["bad failed: bad fails on purpose", "good succeeded"]


def test_a_blocking_check_that_fails_keeps_the_step_below_from_running(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    end = recorder.step("end", raw)

    @dg.asset_check(asset="raw", blocking=True)
    def is_good() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False)

    definitions = _definitions(*build_marin_assets([end]), asset_checks=[is_good])

    run = run_job(definitions, instance, job="mixed")

    assert not run.success
    assert recorder.calls == ["raw"]
    assert not Path(end.output_path).exists()
