"""Steps of a run that must not start because something that they need will not be there."""

from collections import defaultdict
from collections.abc import Collection, Mapping

from marin_dagster.assets.step_op import StepOp
from marin_dagster.cache.plan import blocked_message
from marin_dagster.errors import DependencyNotBuiltError, MarinDagsterError
from marin_dagster.executor.run_steps import PlannedStep
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.protocol import address


def cannot_run(
    graph: StepGraph, blocked: Mapping[str, Collection[str]], ops: Mapping[str, StepOp]
) -> tuple[dict[str, MarinDagsterError], set[str]]:
    """The blocked steps of a graph that fail, with their errors, and those that only wait.

    A step that all partitions share and that reads several of them, such as a leaderboard, waits:
    a run of one partition does not fail because others are not built.

    Args:
        graph: the steps.
        blocked: for each blocked output path, the inputs that are missing.
        ops: the op of each selected output path.
    """
    errors: dict[str, MarinDagsterError] = {}
    waits: set[str] = set()
    for path, missing in blocked.items():
        op = ops[path]
        shared = op.run_partition is not None and op.partition is None
        if shared and all(op.is_of_another_partition(dep) for dep in missing):
            waits.add(path)
        else:
            message = blocked_message(graph, path, missing, op.is_of_another_partition)
            errors[path] = DependencyNotBuiltError(message)
    return errors, waits


def hold_back(
    planned: Mapping[str, PlannedStep],
    executable: Mapping[str, set[str]],
    to_run: list[str],
    waiting: set[str],
) -> dict[str, MarinDagsterError]:
    """Take what reads waiting steps out of ``to_run``: shared steps wait, too, others fail.

    Args:
        planned: the run's steps, dependencies first.
        executable: for each step key, the step keys that it reads.
        to_run: keys of steps that would run; changed.
        waiting: keys of steps that wait; added to.

    Returns:
        The errors of the steps that fail.
    """
    errors: dict[str, MarinDagsterError] = {}
    for key, found in planned.items() if waiting else ():
        if key not in to_run or waiting.isdisjoint(executable.get(key, ())):
            continue
        to_run.remove(key)
        if found.asset.partition is None:
            waiting.add(key)
        else:
            errors[key] = DependencyNotBuiltError(
                f"step {address(found.step)} ({found.step.output_path}) needs a step that waits "
                "for other partitions. Build those partitions first."
            )
    return errors


def waits_text(step: StepLike) -> str:
    """Why a step that waits for other partitions is skipped."""
    return (
        f"{address(step)} waits for other partitions, which are not built. Materialize it, without "
        "a partition, when they are."
    )


def unreachable(
    executable: Mapping[str, set[str]], blocked: Collection[str], hits: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """The steps downstream of blocked ones, and what each misses; a hit misses nothing."""
    readers: dict[str, list[str]] = defaultdict(list)
    for key, deps in executable.items():
        if key not in blocked and key not in hits:
            for dep in deps:
                readers[dep].append(key)
    lost: dict[str, set[str]] = {}
    waiting = list(blocked)
    while waiting:
        missing = waiting.pop()
        for key in readers[missing]:
            if key not in lost:
                waiting.append(key)
            lost.setdefault(key, set()).add(missing)
    return {key: tuple(sorted(missing)) for key, missing in lost.items()}
