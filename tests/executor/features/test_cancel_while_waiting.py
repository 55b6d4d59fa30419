"""A run is cancelled while one of its steps waits for another worker's lease."""

import os
import signal
import threading

import dagster as dg
import pytest
from dagster._utils.interrupts import capture_interrupts

from helpers.cache import begin
from helpers.processes import wait_until
from helpers.runs import Recorder, is_locked, run_job, status_of, wait_for_step_threads
from marin_dagster import build_definitions


@pytest.mark.parametrize("force", [False, True])
def test_a_cancelled_run_leaves_the_other_workers_attempt_alone(
    force: bool, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    definitions = build_definitions([recorder.step("clean", raw)])
    other = begin(raw)

    def waits() -> bool:
        runs = instance.get_runs()
        lines = [entry.user_message for run in runs for entry in instance.all_logs(run.run_id)]
        return any("waiting for" in line for line in lines)

    def cancel() -> None:
        wait_until(waits, "the step to wait")
        os.kill(os.getpid(), signal.SIGINT)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with capture_interrupts():
        run = run_job(definitions, instance, config={"force": force})
    canceller.join()
    wait_for_step_threads()

    assert "interrupted" in str(run.of_type("PIPELINE_FAILURE"))
    assert recorder.calls == []
    assert is_locked(raw)
    assert status_of(raw) == "RUNNING"
    other.fail()
    assert run_job(definitions, instance).success
    assert recorder.take() == ["raw", "clean"]
