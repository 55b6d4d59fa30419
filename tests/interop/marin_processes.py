"""Worker processes: one with real Marin, one with our cache, on the same outputs.

Each function is the target of a process that is started anew and imports only this file.
"""

import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

PATIENCE_S = 120.0
"""How long a worker waits for another one before the test fails; never decides a result."""

spawn = multiprocessing.get_context("spawn")


def start(target: Callable[..., None], *arguments: Any) -> SpawnProcess:
    """Start a worker process."""
    process = spawn.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def note(who: str, output_path: str) -> dict[str, str]:
    """A step's function: leaves a line for every time it ran."""
    with Path(output_path, "calls").open("a") as file:
        file.write(f"{who}\n")
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
        attempt.abandon()


def race_with_marin(prefix: str, rounds: int, barrier: Barrier) -> None:
    """In each round, meet the other worker and run the same step with Marin."""
    from marin.execution import step_status
    from marin.execution.step_runner import run_step
    from marin.execution.step_spec import StepSpec

    # Marin looks again after 5 seconds; the race is over long before.
    step_status.sleep = lambda seconds: time.sleep(0.002)
    for index in range(rounds):
        step = StepSpec(f"step-{index}", output_path_prefix=prefix, fn=partial(note, "marin"))
        _ = step.output_path
        barrier.wait(PATIENCE_S)
        run_step(step)


def race_with_ours(prefix: str, rounds: int, barrier: Barrier) -> None:
    """In each round, meet the other worker and run the same step with our cache."""
    from marin_dagster.cache import Attempt, LeaseTiming, StepCache
    from marin_dagster.runners import run_inline
    from marin_dagster.steps import StepSpec

    cache = StepCache(LeaseTiming(poll_s=0.002))
    for index in range(rounds):
        step = StepSpec(f"step-{index}", output_path_prefix=prefix, fn=partial(note, "ours"))
        _ = step.output_path
        barrier.wait(PATIENCE_S)
        outcome = cache.begin(step)
        if isinstance(outcome, Attempt):
            outcome.result = run_inline(step)
            outcome.commit()
