"""Dagster's hooks on our steps: when they fire, and that they hold up nothing but the run's end."""

import sys
import threading

import dagster as dg
import pytest

from helpers.runs import Recorder, run_job
from helpers.step_jobs import CHANCE_S, JOB, PATIENCE_S, log_of, steps_job
from marin_dagster import StepSpec


def test_success_hooks_fire_for_steps_that_succeed_and_failure_hooks_for_the_others(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    fired: list[tuple[str, str]] = []

    @dg.success_hook
    def cheer(context: dg.HookContext) -> None:
        fired.append(("cheer", context.step_key))

    @dg.failure_hook
    def mourn(context: dg.HookContext) -> None:
        fired.append(("mourn", f"{context.step_key}: {context.op_exception}"))

    bad = recorder.step("bad", fails=True)
    steps = [recorder.step("good"), recorder.step("below", bad)]

    run = run_job(steps_job(*steps, hooks={cheer, mourn}), instance, job=JOB)

    assert sorted(fired) == [("cheer", "good"), ("mourn", "bad: bad fails on purpose")]
    assert run.steps("HOOK_COMPLETED") == ["bad", "good"]
    assert run.steps("HOOK_SKIPPED") == ["bad", "good"]


def test_a_step_that_is_retried_has_no_failure_until_it_gives_up(
    instance: dg.DagsterInstance,
) -> None:
    fired: list[str] = []
    attempts: list[str] = []

    @dg.success_hook
    def cheer(context: dg.HookContext) -> None:
        fired.append("cheer")

    @dg.failure_hook
    def mourn(context: dg.HookContext) -> None:
        fired.append("mourn")

    def build(output_path: str) -> None:
        attempts.append(output_path)
        if len(attempts) == 1:
            raise RuntimeError("fails on purpose")

    definitions = steps_job(
        StepSpec("train", fn=build),
        hooks={cheer, mourn},
        op_retry_policy=dg.RetryPolicy(max_retries=1),
    )

    assert run_job(definitions, instance, job=JOB).success

    assert fired == ["cheer"]


def test_hooks_do_not_fire_for_steps_that_are_only_observed(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    fired: list[str] = []

    @dg.success_hook
    def cheer(context: dg.HookContext) -> None:
        fired.append(context.step_key)

    definitions = steps_job(recorder.step("raw"), hooks={cheer})

    run_job(definitions, instance, job=JOB)
    run = run_job(definitions, instance, job=JOB)

    assert run.observed() == ["raw"]
    assert fired == ["raw"]


def test_a_slow_hook_keeps_no_step_from_starting_or_finishing(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    last_hook = threading.Event()
    waited: list[bool] = []

    @dg.success_hook
    def slow(context: dg.HookContext) -> None:
        # The hook of the last step ends the wait of all the others.
        if context.step_key == "end":
            last_hook.set()
        waited.append(last_hook.wait(PATIENCE_S))

    raw = recorder.step("raw")
    end = recorder.step("end", recorder.step("middle", raw), recorder.step("other"))

    run = run_job(steps_job(end, hooks={slow}), instance, job=JOB, config={"max_concurrent": 1})

    assert run.success
    assert waited == [True] * 4
    assert recorder.calls[-1] == "end"


def test_a_slow_failure_hook_keeps_no_step_from_starting_or_finishing(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    failed = threading.Event()
    others_ran = threading.Event()
    waited: list[bool] = []

    @dg.failure_hook
    def slow(context: dg.HookContext) -> None:
        failed.set()
        waited.append(others_ran.wait(PATIENCE_S))

    def wait_for_failure(output_path: str) -> None:
        assert failed.wait(PATIENCE_S)

    steps = [
        recorder.step("bad", fails=True),
        StepSpec(
            "end",
            deps=[StepSpec("raw", fn=wait_for_failure)],
            fn=lambda output_path: others_ran.set(),
        ),
    ]

    run = run_job(steps_job(*steps, hooks={slow}), instance, job=JOB)

    assert run.steps("STEP_SUCCESS") == ["end", "raw"]
    assert waited == [True]


def test_a_run_ends_after_its_last_hook(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    run_is_over = threading.Event()
    came_too_late: list[bool] = []

    @dg.success_hook
    def slow(context: dg.HookContext) -> None:
        came_too_late.append(run_is_over.wait(CHANCE_S))

    run = run_job(steps_job(recorder.step("raw"), hooks={slow}), instance, job=JOB)
    run_is_over.set()

    assert came_too_late == [False]
    kinds = [event.event_type_value for event in run.events]
    assert (
        kinds.index("STEP_SUCCESS")
        < kinds.index("HOOK_COMPLETED")
        < kinds.index("PIPELINE_SUCCESS")
    )


@pytest.mark.parametrize("fails", [False, True])
def test_a_hook_that_raises_is_an_event_and_the_run_is_what_its_steps_make_it(
    fails: bool, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    @dg.success_hook
    def broken_cheer(context: dg.HookContext) -> None:
        raise RuntimeError("the hook fails on purpose")

    @dg.failure_hook
    def broken_mourning(context: dg.HookContext) -> None:
        raise RuntimeError("the hook fails on purpose")

    steps = [recorder.step("end", recorder.step("raw")), recorder.step("other", fails=fails)]

    run = run_job(steps_job(*steps, hooks={broken_cheer, broken_mourning}), instance, job=JOB)

    assert run.success is not fails
    assert run.steps("HOOK_ERRORED") == ["end", "other", "raw"]
    assert set(recorder.calls) == {"raw", "end", "other"}


def test_one_hook_that_raises_does_not_silence_another(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    fired: list[str] = []

    @dg.success_hook
    def broken(context: dg.HookContext) -> None:
        raise RuntimeError("the hook fails on purpose")

    @dg.success_hook
    def cheer(context: dg.HookContext) -> None:
        fired.append(context.step_key)

    run_job(steps_job(recorder.step("raw"), hooks={broken, cheer}), instance, job=JOB)

    assert fired == ["raw"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_hook_that_exits_ends_neither_the_run_nor_the_process(
    error: type[BaseException], recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    @dg.success_hook
    def leave(context: dg.HookContext) -> None:
        raise error

    run = run_job(
        steps_job(recorder.step("end", recorder.step("raw")), hooks={leave}), instance, job=JOB
    )

    assert run.success
    assert recorder.calls == ["raw", "end"]


def test_what_a_hook_prints_is_in_its_steps_log(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    @dg.success_hook
    def talk(context: dg.HookContext) -> None:
        print("the hook of", context.step_key)
        print("trouble", file=sys.stderr)

    steps = [recorder.step("one"), recorder.step("two")]

    run = run_job(steps_job(*steps, hooks={talk}), instance, job=JOB)

    for name in ("one", "two"):
        assert log_of(instance, run, name) == f"the hook of {name}\n"
        assert log_of(instance, run, name, "stderr").endswith("trouble\n")
