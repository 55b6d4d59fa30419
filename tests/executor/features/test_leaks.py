"""Many runs in one process leave no thread, descriptor, handler, lease or lock behind."""

import gc
import logging
import os
import threading
from pathlib import Path

import dagster as dg

from helpers.runs import run_job
from helpers.step_jobs import JOB, PATIENCE_S, steps_job
from marin_dagster import StepSpec
from marin_dagster.cache.heartbeat import keeper


def _counts() -> dict[str, int]:
    gc.collect()
    return {
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "handlers": len(logging.getLogger().handlers),
        "leases": len(keeper._held),
    }


def _good(output_path: str) -> None:
    print("hello")
    thread = threading.Thread(target=print, args=("from a thread",))
    thread.start()
    thread.join(PATIENCE_S)


def _fail(output_path: str) -> None:
    print("about to fail")
    raise RuntimeError("fails on purpose")


def _interrupted(output_path: str) -> None:
    raise dg.DagsterExecutionInterruptedError


def _keeper_ended() -> bool:
    thread = keeper._thread
    if thread is not None:
        thread.join(PATIENCE_S)
    return keeper._thread is None


def test_thirty_runs_leave_as_much_behind_as_three(store: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        after_three: dict[str, int] = {}
        for number in range(30):
            # Every third run builds, the next is served from its cache, the last one fails.
            first = StepSpec(f"first_{number // 3}", fn=_good)
            steps = [StepSpec("end", deps=[first], fn=_good)]
            if number % 3 == 2:
                steps += [StepSpec("bad", fn=_fail), StepSpec("stopped", fn=_interrupted)]
            run = run_job(steps_job(*steps), instance, job=JOB)
            assert run.success is (number % 3 != 2)
            assert len(run.observed()) == (0 if number % 3 == 0 else 2)
            assert _keeper_ended()
            if number == 2:
                after_three = _counts()
        # Fewer is fine: a thread of Dagster's own may have ended since.
        assert all(count <= after_three[name] for name, count in _counts().items())
    assert list(store.rglob(".executor_status")), "this test looks for locks at the right place"
    assert list(store.rglob("*.lock*")) == []


def test_a_run_that_ends_with_an_exception_leaves_nothing_either(store: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        definitions = steps_job(StepSpec("raw", fn=_good), StepSpec("bad", fn=_fail))
        run_job(definitions, instance, job=JOB)
        before = _counts()
        for _ in range(5):
            run_job(definitions, instance, job=JOB, config={"retry_failed": False})
            assert _keeper_ended()
        assert _counts() == before
    assert list(store.rglob("*.lock*")) == []
