"""A run's context with another plan, event loop or log."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import dagster as dg

from marin_dagster._compat import (
    ExecutionPlan,
    PlanExecutionContext,
    execution_data,
    replace_event_handler,
)
from marin_dagster.executor.event_writer import EventWriter, WriterHandler


def context_for(
    context: PlanExecutionContext,
    plan: ExecutionPlan,
    event_loop: asyncio.AbstractEventLoop | None = None,
    log: dg.DagsterLogManager | None = None,
) -> PlanExecutionContext:
    """The same context with another plan, event loop or log; steps find inputs through the plan."""
    return PlanExecutionContext(
        plan_data=context.plan_data._replace(execution_plan=plan),
        execution_data=execution_data(context),
        log_manager=log or context.log,
        output_capture=context.output_capture,
        event_loop=event_loop or context.event_loop,
    )


@contextmanager
def writing_events(
    context: PlanExecutionContext, steps: Collection[str]
) -> Iterator[tuple[PlanExecutionContext, EventWriter]]:
    """The same context with a log whose events one thread stores, and that thread.

    Args:
        context: of the run.
        steps: keys of the steps that are ours.
    """
    writer = EventWriter(context.instance, context.instance.get_event_log_handler(), steps)
    log = replace_event_handler(context.log, WriterHandler(writer))
    writer.start()
    try:
        yield context_for(context, context.execution_plan, log=log), writer
    finally:
        writer.close()
