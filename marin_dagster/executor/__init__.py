"""WHEN steps run: the executor, its configuration, its plan and its threads."""

from functools import cache

import dagster as dg

from marin_dagster.executor.config import (
    DEFAULT_MAX_CONCURRENT,
    ExecutorSettings,
    config_schema,
    effective_max_concurrent,
)
from marin_dagster.executor.executor import MarinExecutor

__all__ = ["MarinExecutor", "executor_with_default", "marin_executor"]


@cache
def executor_with_default(max_concurrent: int) -> dg.ExecutorDefinition:
    """:data:`marin_executor` with another default for ``max_concurrent``; 0 means 8.

    The same number gives the same object, so that ``Definitions.merge`` accepts it twice.

    Raises:
        ValueError: the number is negative.
    """
    default = effective_max_concurrent(max_concurrent)

    @dg.executor(name="marin", config_schema=config_schema(default))
    def marin(init_context: dg.InitExecutorContext) -> MarinExecutor:
        return MarinExecutor(ExecutorSettings.from_config(init_context.executor_config))

    return marin


marin_executor: dg.ExecutorDefinition = executor_with_default(DEFAULT_MAX_CONCURRENT)
"""Runs steps in threads of the run worker: at most ``max_concurrent`` at once, nothing that is
cached, and nothing that only cached steps need. Its config is described in the launchpad."""
