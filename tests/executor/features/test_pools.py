"""Dagster's ways to decide which steps run now: pools, priorities, retry delays, step dependencies.

A translator puts steps in pools; here some ops are changed instead, so that others stay out.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.execution.plan import instance_concurrency_context
from dagster._utils.interrupts import capture_interrupts

from helpers.runs import Recorder, Run, run_job, status_of, wait_for_step_threads
from helpers.step_jobs import CHANCE_S, JOB, PATIENCE_S, job_of, steps_job, with_op
from marin_dagster import (
    DagsterMarinTranslator,
    StepLike,
    StepSpec,
    build_definitions,
    build_marin_assets,
)
from marin_dagster.cache import Attempt, StepCache
from marin_dagster.executor import decisions
from marin_dagster.executor.pools import RunSlots

POOL = "gpus"


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """An instance whose pools have two slots; who waits for one looks often."""
    # After 30 looks Dagster would look every 15 s only.
    for name in ("INITIAL_INTERVAL_VALUE", "MAX_CONCURRENCY_CLAIM_BLOCKED_INTERVAL"):
        monkeypatch.setattr(instance_concurrency_context, name, 0.05)
    with dg.instance_for_test(
        overrides={"concurrency": {"pools": {"default_limit": 2}}}
    ) as instance:
        yield instance


class House:
    """Counts the functions that are inside at once; the first two leave together."""

    def __init__(self) -> None:
        self.peak = 0
        self.calls = 0
        self._inside = 0
        self._mutex = threading.Lock()
        self._both = threading.Barrier(2)
        self._too_many = threading.Event()

    def visit(self, output_path: str) -> None:
        with self._mutex:
            self._inside += 1
            self.calls += 1
            first = self.calls <= 2
            self.peak = max(self.peak, self._inside)
            if self._inside > 2:
                self._too_many.set()
        if first:
            self._both.wait(PATIENCE_S)
            self._too_many.wait(CHANCE_S)
        with self._mutex:
            self._inside -= 1


def _pooled_job(*steps: StepSpec, **options: Any) -> dg.Definitions:
    return job_of([with_op(asset, pool=POOL) for asset in build_marin_assets(steps)], **options)


def _slots_taken(instance: dg.DagsterInstance) -> int:
    info = instance.event_log_storage.get_concurrency_info(POOL)
    return info.active_slot_count + info.pending_step_count


def test_of_twelve_ready_steps_in_a_pool_of_two_never_more_than_two_run(
    pooled: dg.DagsterInstance,
) -> None:
    house = House()
    steps = [StepSpec(f"step_{index}", fn=house.visit) for index in range(12)]

    run = run_job(_pooled_job(*steps), pooled, job=JOB, config={"max_concurrent": 12})

    assert run.success
    assert (house.calls, house.peak) == (12, 2)
    assert _slots_taken(pooled) == 0


class PoolTranslator(DagsterMarinTranslator):
    """Puts every step in the pool."""

    def get_pool(self, step: StepLike) -> str:
        return POOL


def test_of_44_ready_steps_in_the_translators_pool_two_run_at_once_and_all_finish(
    pooled: dg.DagsterInstance,
) -> None:
    house = House()
    steps = [StepSpec(f"step_{index}", fn=house.visit) for index in range(44)]
    definitions = build_definitions(steps, translator=PoolTranslator())

    run = run_job(definitions, pooled, config={"max_concurrent": 8})

    assert run.success
    assert (house.calls, house.peak) == (44, 2)
    assert len(run.materialized()) == 44
    assert _slots_taken(pooled) == 0


def test_steps_outside_a_full_pool_go_on(pooled: dg.DagsterInstance) -> None:
    outside = threading.Event()
    waited: list[bool] = []
    steps = [
        StepSpec(f"pooled_{index}", fn=lambda path: waited.append(outside.wait(PATIENCE_S)))
        for index in range(4)
    ]
    free = StepSpec("free", fn=lambda path: outside.set())
    assets = build_marin_assets([*steps, StepSpec("after_free", deps=[free], fn=free.fn)])
    keys = {dg.AssetKey(step.name) for step in steps}
    definitions = job_of(with_op(a, pool=POOL) if a.key in keys else a for a in assets)

    assert run_job(definitions, pooled, job=JOB).success

    assert waited == [True] * 4


def test_failed_steps_give_their_slots_back(recorder: Recorder, pooled: dg.DagsterInstance) -> None:
    steps = [recorder.step(f"step_{index}", fails=index < 3) for index in range(6)]

    run = run_job(_pooled_job(*steps), pooled, job=JOB)

    assert run.steps("STEP_FAILURE") == ["step_0", "step_1", "step_2"]
    assert len(recorder.calls) == 6
    assert _slots_taken(pooled) == 0


def test_a_step_gives_its_slot_back_before_its_retry(pooled: dg.DagsterInstance) -> None:
    attempts: list[int] = []

    def build(output_path: str) -> None:
        attempts.append(_slots_taken(pooled))
        if len(attempts) == 1:
            raise RuntimeError("fails on purpose")

    definitions = _pooled_job(
        StepSpec("train", fn=build), op_retry_policy=dg.RetryPolicy(max_retries=1)
    )

    assert run_job(definitions, pooled, job=JOB).success

    assert attempts == [1, 1]
    assert _slots_taken(pooled) == 0


def test_a_step_that_is_left_behind_keeps_no_slot(
    recorder: Recorder, pooled: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "_GRACE_S", 0.5)
    go_on = threading.Lock()
    go_on.acquire()

    def wait_in_c(output_path: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        with go_on:
            pass

    stuck = [StepSpec(f"stuck_{index}", fn=wait_in_c) for index in range(2)]
    with capture_interrupts():
        cancelled = run_job(_pooled_job(*stuck), pooled, job=JOB)

    assert not cancelled.success
    assert _slots_taken(pooled) == 0
    assert run_job(_pooled_job(recorder.step("next")), pooled, job=JOB).success
    go_on.release()
    wait_for_step_threads()


def _fail(output_path: str) -> None:
    raise RuntimeError("fails on purpose")


@pytest.fixture
def never_again(pooled: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Dagster looks for a slot once, and then for ages not; a run that waits for it is stopped."""
    for name in ("INITIAL_INTERVAL_VALUE", "MAX_CONCURRENCY_CLAIM_BLOCKED_INTERVAL"):
        monkeypatch.setattr(instance_concurrency_context, name, 1e6)
    guard = threading.Timer(PATIENCE_S, os.kill, (os.getpid(), signal.SIGINT))
    with capture_interrupts():
        guard.start()
        yield
        guard.cancel()


@pytest.mark.usefixtures("never_again")
@pytest.mark.parametrize(
    ("function", "retries"), [(print, 0), (_fail, 2)], ids=["steps", "retries"]
)
def test_a_slot_passes_on_without_waiting(
    function: Callable[[str], None], retries: int, pooled: dg.DagsterInstance
) -> None:
    steps = [StepSpec(f"step_{index}", fn=function) for index in range(6)]
    policy = dg.RetryPolicy(max_retries=retries) if retries else None

    run = run_job(_pooled_job(*steps, op_retry_policy=policy), pooled, job=JOB)

    assert len(run.steps("STEP_SUCCESS") + run.steps("STEP_FAILURE")) == 6
    assert len(run.of_type("STEP_UP_FOR_RETRY")) == 6 * retries
    assert _slots_taken(pooled) == 0


@pytest.mark.usefixtures("never_again")
def test_a_slot_that_another_run_waits_for_is_left_to_it(pooled: dg.DagsterInstance) -> None:
    run = pooled.create_run_for_job(job_def=steps_job(StepSpec("a", fn=print)).resolve_job_def(JOB))
    storage = pooled.event_log_storage
    slots = RunSlots(pooled, run)
    assert slots.claim(POOL, "a")
    assert slots.claim(POOL, "b")
    assert not storage.claim_concurrency_slot(POOL, "another run", "x", 1).is_claimed
    assert not slots.claim(POOL, "c")

    slots.free_step("a")

    assert not slots.claim(POOL, "c")
    assert storage.claim_concurrency_slot(POOL, "another run", "x", 1).is_claimed
    slots.free_step("b")
    assert slots.claim(POOL, "c")


def test_a_full_pool_keeps_no_run_waiting_whose_steps_are_all_served(
    recorder: Recorder, pooled: dg.DagsterInstance
) -> None:
    definitions = _pooled_job(recorder.step("end", recorder.step("raw")))
    assert run_job(definitions, pooled, job=JOB).success
    for name in ("one", "two"):
        pooled.event_log_storage.claim_concurrency_slot(POOL, "another run", name)

    run = run_job(definitions, pooled, job=JOB)

    assert run.success
    assert run.observed() == ["end", "raw"]
    assert recorder.calls == ["raw", "end"]


def test_with_one_thread_steps_run_in_the_order_of_their_priority(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    priorities = {"low": "-1", "middle": "0", "high": "7", "higher": "30"}
    assets = build_marin_assets([recorder.step(name) for name in priorities])
    definitions = job_of(
        with_op(asset, tags={"dagster/priority": priorities[asset.key.path[-1]]})
        for asset in assets
    )

    assert run_job(definitions, instance, job=JOB, config={"max_concurrent": 1}).success

    assert recorder.calls == ["higher", "high", "middle", "low"]


def test_a_runs_tags_stay_with_the_run_and_change_no_step(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = steps_job(recorder.step("raw"))
    job = definitions.resolve_job_def(JOB)
    tagged = instance.create_run_for_job(
        job_def=job, tags={"team": "nlp", "dagster/priority": "5", "marin/device": "gpu"}
    )

    result = execute_run(InMemoryJob(job), tagged, instance)
    again = run_job(definitions, instance, job=JOB)

    stored = instance.get_run_by_id(tagged.run_id)
    assert stored is not None
    assert (stored.tags["team"], stored.tags["marin/device"]) == ("nlp", "gpu")
    [materialization] = Run(True, list(result.all_events), tagged.run_id).materialized().values()
    assert not {"team", "marin/device"} & set(materialization.tags or {})
    assert again.observed() == ["raw"]
    assert recorder.calls == ["raw"]


def test_a_step_that_may_start_at_its_inputs_output_waits_until_that_is_committed(
    recorder: Recorder, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = recorder.step("raw")
    end = recorder.step("end", raw)
    end_began = threading.Event()
    found: list[str | None] = []
    begin: Callable[..., Any] = StepCache.begin
    commit: Callable[..., Any] = Attempt.commit

    def watched_begin(self: StepCache, step: Any, **options: Any) -> Any:
        if step.name == "end":
            found.append(status_of(raw))
            end_began.set()
        return begin(self, step, **options)

    def slow_commit(self: Attempt, *args: Any, **options: Any) -> Any:
        if not end_began.is_set():
            end_began.wait(CHANCE_S)
        return commit(self, *args, **options)

    monkeypatch.setattr(StepCache, "begin", watched_begin)
    monkeypatch.setattr(Attempt, "commit", slow_commit)
    config = {"step_dependency_config": {"require_upstream_step_success": False}}

    run = run_job(steps_job(end), instance, job=JOB, config=config)

    assert found == ["SUCCESS"]
    assert run.success
    assert recorder.calls == ["raw", "end"]


def test_while_a_retry_is_delayed_other_steps_start_and_finish(
    instance: dg.DagsterInstance,
) -> None:
    failed_once = threading.Event()
    order: list[str] = []

    def flaky(output_path: str) -> None:
        order.append("flaky")
        if not failed_once.is_set():
            failed_once.set()
            raise RuntimeError("fails on purpose")

    def first(output_path: str) -> None:
        assert failed_once.wait(PATIENCE_S)
        order.append("first")

    def second(output_path: str) -> None:
        Path(output_path, "data.txt").write_text("second")
        order.append("second")

    steps = [
        StepSpec("flaky", fn=flaky),
        StepSpec("second", deps=[StepSpec("first", fn=first)], fn=second),
    ]
    policy = dg.RetryPolicy(max_retries=1, delay=4)

    run = run_job(steps_job(*steps, op_retry_policy=policy), instance, job=JOB)

    assert run.success
    assert run.steps("STEP_UP_FOR_RETRY") == ["flaky"]
    assert sorted(order[1:3]) == ["first", "second"]
    assert order[-1] == "flaky"
