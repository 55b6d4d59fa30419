"""Worker processes: one with real Marin, one with our cache, on the same outputs.

Each function is the target of a process that is started anew and imports only this file.
"""

import multiprocessing
import time
import uuid
from collections.abc import Callable
from functools import partial
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event
from typing import Any

import fsspec

PATIENCE_S = 120.0
"""How long a worker waits for another one before the test fails; never decides a result."""

spawn = multiprocessing.get_context("spawn")


def start(target: Callable[..., None], *arguments: Any) -> SpawnProcess:
    """Start a worker process."""
    process = spawn.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def note(who: str, output_path: str) -> dict[str, str]:
    """A step's function: leaves a file for every time it ran."""
    fsspec.open(f"{output_path}/call-{who}-{uuid.uuid4().hex}", "w").open().close()
    return {"built_by": who}


def held(who: str, started: Event, finish: Event, output_path: str) -> dict[str, str]:
    """A step's function that waits until it may finish."""
    started.set()
    if not finish.wait(PATIENCE_S):
        raise TimeoutError("nobody let the step finish")
    return note(who, output_path)


def build_with_marin(prefix: str, started: Event, finish: Event) -> None:
    """Build one step as Marin's runner does."""
    from marin.execution.step_runner import run_step
    from marin.execution.step_spec import StepSpec

    function = partial(held, "marin", started, finish)
    run_step(StepSpec("train", output_path_prefix=prefix, fn=function))


def build_with_ours(prefix: str, started: Event, finish: Event) -> None:
    """Build one step as our executor does."""
    from marin_dagster.cache import Attempt, StepCache
    from marin_dagster.runners import run_inline
    from marin_dagster.steps import StepSpec

    function = partial(held, "ours", started, finish)
    step = StepSpec("train", output_path_prefix=prefix, fn=function)
    attempt = StepCache().begin(step)
    assert isinstance(attempt, Attempt)
    try:
        attempt.result = run_inline(step)
        attempt.commit()
    finally:
        attempt.fail()


def run_in_dagster(prefix: str, started: Event, finish: Event) -> None:
    """Build one step in a Dagster run."""
    from marin_dagster import StepRunner, StepSpec

    function = partial(held, "ours", started, finish)
    StepRunner().run([StepSpec("train", output_path_prefix=prefix, fn=function)])


def race_with_marin(prefix: str, names: "Queue[str | None]", barrier: Barrier) -> None:
    """Run each step that the other worker names with Marin, at the moment at which it begins it."""
    from marin.execution import step_status
    from marin.execution.step_runner import run_step
    from marin.execution.step_spec import StepSpec

    # Marin looks again after 5 seconds; the race is over long before.
    step_status.sleep = lambda seconds: time.sleep(0.002)
    while (name := names.get(timeout=PATIENCE_S)) is not None:
        step = StepSpec(name, output_path_prefix=prefix, fn=partial(note, "marin"))
        _ = step.output_path
        barrier.wait(PATIENCE_S)
        run_step(step)


def race_in_dagster(prefix: str, rounds: int, names: "Queue[str | None]", barrier: Barrier) -> None:
    """One Dagster run of all steps, which waits for the other worker as it begins each."""
    import dagster as dg

    from marin_dagster import MarinIOManager, StepCache, StepSpec, build_definitions
    from marin_dagster._compat import InMemoryJob, execute_run
    from marin_dagster.cache import LeaseTiming

    class MeetingCache(StepCache):
        def begin(self, step: Any, **options: Any) -> Any:
            names.put(step.name)
            barrier.wait(PATIENCE_S)
            return super().begin(step, **options)

    class MeetingIOManager(MarinIOManager):
        @property
        def cache(self) -> StepCache:
            return MeetingCache(LeaseTiming(poll_s=0.002))

    steps = [
        StepSpec(f"step-{index}", output_path_prefix=prefix, fn=partial(note, "ours"))
        for index in range(rounds)
    ]
    definitions = build_definitions(steps, max_concurrent=1)
    definitions = dg.Definitions(
        assets=definitions.assets,
        jobs=definitions.jobs,
        resources={"marin_io_manager": MeetingIOManager()},
    )
    job = definitions.resolve_job_def("materialize_steps")
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(job_def=job)
        result = execute_run(InMemoryJob(job), run, instance)
    names.put(None)
    assert result.success
    built = [event for event in result.all_events if event.is_step_materialization]
    assert len(built) == rounds
