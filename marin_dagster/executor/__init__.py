"""WHEN steps run: the executor, its configuration, its plan and its threads."""

import threading
from collections.abc import Mapping
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import dagster as dg

from marin_dagster.cache import DriftLog
from marin_dagster.executor.config import (
    DEFAULT_MAX_CONCURRENT,
    ExecutorSettings,
    config_schema,
    effective_max_concurrent,
)
from marin_dagster.executor.executor import MarinExecutor
from marin_dagster.runners import Runner

__all__ = [
    "MarinExecutor",
    "build_marin_executor",
    "marin_executor",
    "runner_executor",
    "runners_of",
]

_runners: WeakKeyDictionary[dg.ExecutorDefinition, Mapping[str, Runner]] = WeakKeyDictionary()


def build_marin_executor(
    max_concurrent: int = DEFAULT_MAX_CONCURRENT, *, runners: Mapping[str, Runner] | None = None
) -> dg.ExecutorDefinition:
    """:data:`marin_executor` with another default for ``max_concurrent``, or with runners that are
    made in code, such as one around a Fray client of your own.

    Args:
        max_concurrent: how many steps run at once unless the run's config sets it; 0 means the
            default, 8.
        runners: more runners, by the names that routes and steps use. No run closes them; that is
            up to you.

    Raises:
        ValueError: the number is negative.
    """
    if not runners:
        # The same object for the same number, so that Definitions.merge accepts it twice.
        return _plain_executor(effective_max_concurrent(max_concurrent))
    return _executor(effective_max_concurrent(max_concurrent), runners)


@cache
def _plain_executor(max_concurrent: int) -> dg.ExecutorDefinition:
    return _executor(max_concurrent, {})


def runner_executor(
    max_concurrent: int,
    runners: Mapping[str, Runner],
    required: frozenset[str],
    failures: dict[str, list[BaseException]],
    drifts: DriftLog,
    *,
    built: set[str],
    stop: threading.Event,
) -> dg.ExecutorDefinition:
    """An executor for one run of a ``StepRunner``.

    Args:
        max_concurrent: how many steps run at once.
        runners: more runners, by name.
        required: output paths to build even if no selected step reads them, such as the steps
            that a script lists.
        failures: receives what steps raised, by step key.
        drifts: warns of drifted outputs, once in this run.
        built: output paths that the same call built in earlier runs; they are not built again, not
            even ``dev`` versions. Receives those of this run.
        stop: interrupts the run when it is set.
    """
    return _executor(
        max_concurrent,
        runners,
        required=required,
        failures=failures,
        drifts=drifts,
        built=built,
        stop=stop,
        from_script=True,
    )


def _executor(
    max_concurrent: int, runners: Mapping[str, Runner], **more: Any
) -> dg.ExecutorDefinition:
    @dg.executor(name="marin", config_schema=config_schema(max_concurrent))
    def marin(init_context: dg.InitExecutorContext) -> MarinExecutor:
        settings = ExecutorSettings.from_config(init_context.executor_config)
        return MarinExecutor(settings, runners, **more)

    _runners[marin] = runners
    return marin


def runners_of(executor: dg.ExecutorDefinition) -> Mapping[str, Runner]:
    """The runners that were given in code to an executor of ours; none for any other."""
    return _runners.get(executor, {})


marin_executor: dg.ExecutorDefinition = build_marin_executor()
"""Runs steps in threads of the run worker, at most ``max_concurrent`` at once. Leaves out cached
steps and those that only cached steps need. The launchpad describes its config."""
