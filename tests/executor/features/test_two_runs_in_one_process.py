"""Two runs at once in two threads of one process, over one store."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Run, is_locked, metadata_of, run_job, status_of
from helpers.step_jobs import JOB, PATIENCE_S, log_of, steps_job
from marin_dagster import MarinIOManager, StepSpec
from marin_dagster.cache import StepCache


def _at_once(
    first: Callable[[], Run], second: Callable[[], Run], busy: threading.Event
) -> list[Run]:
    """Run both at once; the second starts when the steps of the first are busy.

    Dagster itself comes to a deadlock when a run starts while another one in the process stores an
    event: ``logging.config.dictConfig`` and the log handler take their locks in opposite order.
    """
    runs: dict[int, Run] = {}

    def work(index: int, run: Callable[[], Run]) -> None:
        runs[index] = run()

    threads = []
    for index, run in enumerate((first, second)):
        threads.append(threading.Thread(target=work, args=(index, run), daemon=True))
        threads[-1].start()
        assert busy.wait(PATIENCE_S)
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    assert sorted(runs) == [0, 1]
    return [runs[0], runs[1]]


def test_on_one_graph_each_function_runs_once_and_its_log_is_with_the_run_that_built_it(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    begun: dict[str, threading.Semaphore] = {}
    begin: Callable[..., Any] = StepCache.begin
    mutex = threading.Lock()
    busy = threading.Event()

    def watched_begin(self: StepCache, step: Any, **options: Any) -> Any:
        with mutex:
            semaphore = begun.setdefault(step.name, threading.Semaphore(0))
        semaphore.release()
        return begin(self, step, **options)

    monkeypatch.setattr(StepCache, "begin", watched_begin)

    def step(name: str, *deps: StepSpec) -> StepSpec:
        def build(output_path: str) -> dict[str, int]:
            # Both runs want this step, and one has it.
            busy.set()
            for _ in range(2):
                assert begun[name].acquire(timeout=PATIENCE_S)
            calls.append(name)
            print(f"building {name}")
            Path(output_path, "data.txt").write_text(name)
            return {"size": len(name)}

        return StepSpec(name, deps=deps, fn=build)

    raw = step("raw")
    steps = [raw, *(step(f"part_{index}", raw) for index in range(3))]
    steps.append(step("end", *steps))
    definitions = steps_job(steps[-1])
    definitions = dg.Definitions.merge(
        dg.Definitions(jobs=definitions.jobs, assets=definitions.assets),
        dg.Definitions(resources={"marin_io_manager": MarinIOManager(lease_poll_s=0.05)}),
    )

    runs = _at_once(*[lambda: run_job(definitions, instance, job=JOB)] * 2, busy=busy)

    assert [run.success for run in runs] == [True, True]
    assert sorted(calls) == sorted(one.name for one in steps)
    for one in steps:
        logs = {}
        for run in runs:
            cache = metadata_of(run.materialized()[one.name])["marin/cache"]
            logs[cache] = log_of(instance, run, one.name)
        assert logs == {"built": f"building {one.name}\n", "hit": ""}
        assert status_of(one) == "SUCCESS"
        assert not is_locked(one)


def test_on_two_graphs_each_runs_logs_are_its_own(instance: dg.DagsterInstance) -> None:
    together = threading.Barrier(8)
    inside = threading.Semaphore(0)
    busy = threading.Event()

    def step(name: str) -> StepSpec:
        def build(output_path: str) -> None:
            if name == "a_0":
                for _ in range(3):
                    assert inside.acquire(timeout=PATIENCE_S)
                busy.set()
            else:
                inside.release()
            for number in range(20):
                if number in (0, 19):
                    together.wait(PATIENCE_S)
                print(f"{name} {number}")

        return StepSpec(name, fn=build)

    jobs = {letter: steps_job(*[step(f"{letter}_{i}") for i in range(4)]) for letter in "ab"}

    runs = _at_once(
        lambda: run_job(jobs["a"], instance, job=JOB),
        lambda: run_job(jobs["b"], instance, job=JOB),
        busy,
    )

    for letter, run in zip("ab", runs, strict=True):
        assert run.success
        assert len(run.of_type("LOGS_CAPTURED")) == 4
        for index in range(4):
            name = f"{letter}_{index}"
            assert log_of(instance, run, name) == "".join(f"{name} {n}\n" for n in range(20))


def test_one_run_that_fails_leaves_the_other_alone(instance: dg.DagsterInstance) -> None:
    failed = threading.Event()
    busy = threading.Event()

    def fail(output_path: str) -> None:
        raise RuntimeError("fails on purpose")

    def outlive(output_path: str) -> None:
        busy.set()
        assert failed.wait(PATIENCE_S)
        print("still here")

    def failing_run() -> Run:
        run = run_job(steps_job(StepSpec("bad", fn=fail)), instance, job=JOB)
        failed.set()
        return run

    good = steps_job(StepSpec("end", deps=[StepSpec("good", fn=outlive)], fn=outlive))

    good_run, bad_run = _at_once(lambda: run_job(good, instance, job=JOB), failing_run, busy)

    assert not bad_run.success
    assert good_run.success
    for name in ("good", "end"):
        assert log_of(instance, good_run, name) == "still here\n"
