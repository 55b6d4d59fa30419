"""An output that was finished, and that an attempt to build it again has left unfinished."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._utils.interrupts import capture_interrupts

from helpers.runs import Recorder, metadata_of, run_job, status_of, wait_for_step_threads
from helpers.sensor_ticks import Watch
from marin_dagster import StepSpec, build_definitions
from marin_dagster.executor import decisions

DEV = {"fingerprint": "0", "version": "dev"}


def reported(instance: dg.DagsterInstance) -> list[tuple[str, Any]]:
    """The type and ``marin/cache`` of the asset's events, in order."""
    key = dg.AssetKey("raw")
    built = [
        (record.storage_id, "materialized", record.asset_materialization)
        for record in instance.fetch_materializations(key, limit=100).records
    ]
    seen = [
        (record.storage_id, "observed", record.event_log_entry.asset_observation)
        for record in instance.fetch_observations(key, limit=100).records
    ]
    return [(kind, metadata_of(event)["marin/cache"]) for _, kind, event in sorted(built + seen)]


def fail(output_path: str) -> None:
    raise RuntimeError("fails on purpose")


def give_what_no_record_holds(output_path: str) -> Any:
    return {"result": object()}


def interrupt(output_path: str) -> None:
    raise dg.DagsterExecutionInterruptedError


def leave(output_path: str) -> None:
    raise GeneratorExit


@pytest.mark.parametrize("executor", [None, dg.in_process_executor], ids=["marin", "in process"])
@pytest.mark.parametrize("function", [fail, give_what_no_record_holds, interrupt, leave])
def test_a_failure_over_a_finished_output_is_on_the_asset_once(
    function: Callable[[str], Any],
    executor: Any,
    recorder: Recorder,
    instance: dg.DagsterInstance,
) -> None:
    built = build_definitions([recorder.step("raw", hash_attrs=DEV)], executor=executor)
    assert run_job(built, instance).success
    broken = StepSpec("raw", fn=function, hash_attrs=DEV)

    try:
        run = run_job(build_definitions([broken], executor=executor), instance)
    except GeneratorExit:  # Dagster's executor lets it pass
        assert executor is not None
    else:
        assert not run.success

    assert status_of(broken) == "FAILED"
    assert reported(instance) == [("materialized", "built"), ("observed", "failed")]


def test_a_failure_over_nothing_finished_needs_no_word(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    broken = recorder.step("raw", fails=True)
    run_job(build_definitions([broken]), instance)
    run_job(build_definitions([broken]), instance)

    assert reported(instance) == []


@pytest.mark.parametrize("by", ["the next run", "the sensor"])
def test_a_killed_worker_over_a_finished_output_is_on_the_asset(
    by: str, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    watch = Watch(instance, [raw])
    assert run_job(watch.definitions, instance).success
    # What a worker leaves that was killed while it built it again, once its lease has run out.
    Path(raw.output_path, ".executor_status").write_text("RUNNING")

    if by == "the sensor":
        assert watch.reported() == {"raw": "failed"}
        assert watch.tick() == {}
    else:
        assert run_job(watch.definitions, instance).success
        story = [("materialized", "built"), ("observed", "failed"), ("materialized", "built")]
        assert reported(instance) == story


def test_a_worker_that_was_killed_over_nothing_finished_needs_no_word(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    Path(raw.output_path).mkdir(parents=True)
    Path(raw.output_path, ".executor_status").write_text("RUNNING")

    assert run_job(build_definitions([raw]), instance).success

    assert reported(instance) == [("materialized", "built")]


@pytest.mark.parametrize("where", ["in Python", "in C"])
def test_a_cancelled_run_over_a_finished_output_is_on_the_asset(
    where: str,
    recorder: Recorder,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "_GRACE_S", 0.5)
    raw = recorder.step("raw")
    assert run_job(build_definitions([raw]), instance).success
    go_on = threading.Lock()
    go_on.acquire()

    def wait(output_path: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        if where == "in C":
            go_on.acquire()
        while True:
            time.sleep(0.01)

    waiting = build_definitions([StepSpec("raw", fn=wait)])
    with capture_interrupts():
        run = run_job(waiting, instance, config={"force": True})

    assert "interrupted" in str(run.of_type("PIPELINE_FAILURE"))
    assert reported(instance) == [("materialized", "built"), ("observed", "failed")]
    go_on.release()
    wait_for_step_threads()
