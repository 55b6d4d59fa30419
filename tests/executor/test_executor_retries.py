"""Dagster's retry policies on our steps: another attempt at the same output, within one run."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import dagster as dg
import pytest

from helpers.runs import Recorder, is_locked, run_job, status_of
from marin_dagster import (
    DagsterMarinTranslator,
    MarinIOManager,
    StepSpec,
    build_definitions,
    build_marin_assets,
    marin_executor,
)


class Flaky:
    """A function that fails a number of times, and remembers the status it found each time."""

    def __init__(self, failures: int, error: type[BaseException] = RuntimeError) -> None:
        self.failures = failures
        self.error = error
        self.attempts = 0

    def __call__(self, output_path: str) -> None:
        self.attempts += 1
        if self.attempts <= self.failures:
            raise self.error(f"attempt {self.attempts} fails on purpose")
        Path(output_path, "data.txt").write_text("done")


def _definitions(step: StepSpec, max_retries: int) -> dg.Definitions:
    job = dg.define_asset_job(
        "retried",
        selection=dg.AssetSelection.all(),
        executor_def=marin_executor,
        op_retry_policy=dg.RetryPolicy(max_retries=max_retries),
    )
    return dg.Definitions(
        assets=build_marin_assets([step]),
        resources={"marin_io_manager": MarinIOManager()},
        jobs=[job],
    )


def test_a_policy_on_the_job_retries_a_step_and_the_run_is_green(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    flaky = Flaky(failures=2)
    train = StepSpec("train", deps=[recorder.step("prep")], fn=flaky)
    end = recorder.step("end", train)

    run = run_job(_definitions(end, 2), instance, job="retried")

    assert run.success
    assert flaky.attempts == 3
    assert recorder.calls == ["prep", "end"]
    assert run.steps("STEP_UP_FOR_RETRY") == ["train", "train"]
    assert run.steps("STEP_FAILURE") == []
    assert status_of(train) == "SUCCESS"
    assert not is_locked(train)


class OfItsOwn(DagsterMarinTranslator):
    """Gives the step ``own`` a policy, and ``never`` one that forbids retries."""

    def get_retry_policy(self, step: Any) -> dg.RetryPolicy | None:
        return {"own": dg.RetryPolicy(max_retries=2), "never": dg.RetryPolicy(max_retries=0)}.get(
            step.name
        )


def test_definitions_and_translator_give_retry_policies(instance: dg.DagsterInstance) -> None:
    flaky = {name: Flaky(failures=5) for name in ("own", "never", "other")}
    steps = [StepSpec(name, fn=function) for name, function in flaky.items()]
    definitions = build_definitions(
        steps, translator=OfItsOwn(), retry_policy=dg.RetryPolicy(max_retries=1)
    )

    run = run_job(definitions, instance)

    assert run.steps("STEP_FAILURE") == ["never", "other", "own"]
    attempts = {name: function.attempts for name, function in flaky.items()}
    assert attempts == {"own": 3, "never": 1, "other": 2}


def test_between_two_attempts_the_status_is_failed_and_the_lock_is_gone(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = StepSpec("train", fn=Flaky(failures=1))
    between: list[tuple[str | None, bool]] = []
    handle = type(instance).handle_new_event

    def watch(self: dg.DagsterInstance, event: Any, **options: Any) -> None:
        if event.dagster_event and event.dagster_event.event_type_value == "STEP_UP_FOR_RETRY":
            between.append((status_of(step), is_locked(step)))
        handle(self, event, **options)

    monkeypatch.setattr(type(instance), "handle_new_event", watch)

    run = run_job(_definitions(step, 1), instance, job="retried")

    assert run.success
    assert between == [("FAILED", False)]


def test_a_retry_waits_until_the_thread_of_the_attempt_before_has_ended(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    second_attempt = threading.Event()

    @contextmanager
    def slow_to_close(log_key: Any, io_type: Any) -> Iterator[IO[str]]:
        yield io.StringIO()
        # As for a log that is uploaded: long enough for a second attempt that comes too early.
        second_attempt.wait(0.5)

    def build(output_path: str) -> None:
        print("opens the log")
        threads.append(threading.current_thread())
        if len(threads) == 1:
            raise RuntimeError("fails on purpose")
        second_attempt.set()
        # The executor gets the first thread's last events before this attempt ends.
        threads[0].join(60)

    monkeypatch.setattr(instance.compute_log_manager, "open_log_stream", slow_to_close)
    step = StepSpec("train", fn=build)

    run = run_job(_definitions(step, 1), instance, job="retried")

    assert run.success
    assert len(threads) == 2
    assert status_of(step) == "SUCCESS"


def test_a_step_that_uses_up_its_retries_fails(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    flaky = Flaky(failures=5)
    train = StepSpec("train", fn=flaky)

    run = run_job(_definitions(recorder.step("end", train), 2), instance, job="retried")

    assert not run.success
    assert flaky.attempts == 3
    assert recorder.calls == []
    assert "attempt 3 fails on purpose" in run.error("train")
    assert status_of(train) == "FAILED"


def test_a_function_may_ask_for_a_retry_itself(instance: dg.DagsterInstance) -> None:
    attempts = []

    def build(output_path: str) -> None:
        attempts.append(output_path)
        if len(attempts) == 1:
            raise dg.RetryRequested(max_retries=1)

    step = StepSpec("train", fn=build)

    run = run_job(_definitions(step, 0), instance, job="retried")

    assert run.success
    assert len(attempts) == 2
    assert status_of(step) == "SUCCESS"


@pytest.mark.parametrize(
    ("retries", "attempts"), [({"enabled": {}}, 2), ({"disabled": {}}, 1)], ids=["on", "off"]
)
def test_the_run_decides_whether_policies_count(
    retries: dict[str, Any], attempts: int, instance: dg.DagsterInstance
) -> None:
    flaky = Flaky(failures=5)

    run_job(
        _definitions(StepSpec("train", fn=flaky), 1),
        instance,
        job="retried",
        config={"retries": retries},
    )

    assert flaky.attempts == attempts


def test_retry_failed_off_refuses_old_failures_and_not_the_retries_of_this_run(
    instance: dg.DagsterInstance,
) -> None:
    flaky = Flaky(failures=1)
    step = StepSpec("train", fn=flaky)

    run = run_job(_definitions(step, 1), instance, job="retried", config={"retry_failed": False})

    assert run.success
    assert flaky.attempts == 2


def test_other_steps_go_on_while_one_waits_for_its_retry(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    class WaitsForOther(Flaky):
        """Fails until the chain beside it is finished."""

        def __call__(self, output_path: str) -> None:
            self.failures = 0 if "other_end" in recorder.calls else self.attempts + 1
            super().__call__(output_path)

    other_end = recorder.step("other_end", recorder.step("other"))
    waiting = WaitsForOther(failures=1)
    job = dg.define_asset_job(
        "retried",
        selection=dg.AssetSelection.all(),
        executor_def=marin_executor,
        op_retry_policy=dg.RetryPolicy(max_retries=200, delay=0.05),
    )
    definitions = dg.Definitions(
        assets=build_marin_assets([StepSpec("train", fn=waiting), other_end]),
        resources={"marin_io_manager": MarinIOManager()},
        jobs=[job],
    )

    run = run_job(definitions, instance, job="retried", config={"max_concurrent": 1})

    assert run.success
    assert recorder.calls == ["other", "other_end"]
