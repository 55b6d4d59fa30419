"""Events of the steps that no thread runs: served, pruned, blocked, or in a dry run."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from marin_dagster._compat import (
    AssetObservationData,
    EngineEventData,
    ExecutionPlan,
    PlanExecutionContext,
    SerializableErrorInfo,
    StepFailureData,
    StepSuccessData,
)
from marin_dagster.assets.cache_integrity_check import evaluate, unknown
from marin_dagster.cache import Drift, DriftLog
from marin_dagster.cache.parallel import map_parallel
from marin_dagster.errors import MarinDagsterError
from marin_dagster.events.asset_records import last_partition_events
from marin_dagster.events.metadata import served_observation
from marin_dagster.events.metadata_keys import STEPS
from marin_dagster.executor.decisions import Decisions
from marin_dagster.executor.event_writer import EventWriter
from marin_dagster.executor.run_steps import PlannedStep, steps_in_order
from marin_dagster.executor.step_outcomes import StepOutcome, dry_run_line, outcomes_table
from marin_dagster.steps import StepLike
from marin_dagster.steps.protocol import address
from marin_dagster.steps.text import summarize


def report_outcomes(
    context: PlanExecutionContext,
    plan: ExecutionPlan,
    outcomes: Mapping[str, StepOutcome],
    doing: str,
) -> dg.DagsterEvent:
    """The run's first event: a table of what the run does with each step, and why.

    Args:
        context: of the run.
        plan: of the run.
        outcomes: the outcome of each step.
        doing: what the run does, as the message of the event.
    """
    message = f"{doing} (pid: {os.getpid()})"
    data = EngineEventData.in_process(os.getpid(), plan.step_keys_to_execute)
    table = dg.MetadataValue.md(outcomes_table(outcomes.values()))
    return dg.DagsterEvent.engine_event(
        context, message, EngineEventData(metadata={STEPS: table, **data.metadata})
    )


def report_dry_run(
    context: PlanExecutionContext,
    plan: ExecutionPlan,
    outcomes: Mapping[str, StepOutcome],
    keys_of: Mapping[str, Sequence[str]],
    events: EventWriter,
) -> list[dg.DagsterEvent]:
    """Events of a run that only reports what a real one would do.

    Args:
        context: of the run.
        plan: of the run.
        outcomes: the outcome of each step, or of each of its partitions.
        keys_of: the keys in ``outcomes`` of each step key.
        events: stores them, all at once.
    """
    with events.together():
        return list(_dry_run(context, plan, outcomes, keys_of))


def _dry_run(
    context: PlanExecutionContext,
    plan: ExecutionPlan,
    outcomes: Mapping[str, StepOutcome],
    keys_of: Mapping[str, Sequence[str]],
) -> Iterator[dg.DagsterEvent]:
    for step in steps_in_order(plan):
        keys = [key for key in keys_of.get(step.key, (step.key,)) if key in outcomes]
        lines = [dry_run_line(outcomes[key]) for key in keys]
        message = summarize(lines, "\n") or "Dry run: would check the output"
        yield _skipped(context.for_step(step), message)


def summary(plan: ExecutionPlan, decisions: Decisions) -> str:
    """How many steps of the run are cached, pruned, blocked, and to run; ordinary steps run."""
    stuck = {*decisions.blocked, *decisions.unreachable} - decisions.checks
    counts = {
        "in the cache": len(decisions.cached),
        "not needed": len(decisions.pruned),
        "built before this worker": len(decisions.done),
        "blocked": len(stuck),
    }
    total = len(set(plan.step_keys_to_execute) - decisions.checks)
    if total == 0:
        return f"Checks: {len(plan.step_keys_to_execute)}. No step is selected."
    counts["to run"] = total - sum(counts.values())
    parts = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"Steps: {total}" + (f", of which {parts}." if parts else ".")


def report(
    context: PlanExecutionContext,
    plan: ExecutionPlan,
    decisions: Decisions,
    drifts: DriftLog,
    events: EventWriter,
) -> list[dg.DagsterEvent]:
    """Events of the steps that no thread will run.

    Args:
        context: of the run.
        plan: of the run.
        decisions: what the run does with each step.
        drifts: warns of drifted outputs.
        events: stores the events, all at once.
    """
    with events.together():
        found = list(_report(context, plan, decisions, drifts))
        report_unreachable(context, plan, decisions.unreachable)
    return found


def _report(
    context: PlanExecutionContext, plan: ExecutionPlan, decisions: Decisions, drifts: DriftLog
) -> Iterator[dg.DagsterEvent]:
    checks = _checks(context, decisions)
    for step in steps_in_order(plan):
        if step.key in decisions.pruned:
            skipped = context.for_step(step)
            yield _skipped(skipped, f"Skipped: {decisions.pruned[step.key]}")
            if (evaluation := checks.get(step.key)) is not None:
                yield dg.DagsterEvent.asset_check_evaluation(skipped, evaluation)
        elif step.key in decisions.served:
            of_step = context.for_step(step)
            drift = decisions.drifted.get(step.key)
            if drift is not None:
                drifts.warn(decisions.planned[step.key].step, drift, of_step.log)
            served = decisions.planned[step.key]
            yield from _observe(of_step, served, drift, checks.get(step.key))
        elif step.key in decisions.blocked:
            ours = decisions.planned[step.key].step
            yield _blocked(context.for_step(step), ours, decisions.blocked[step.key])


def report_unreachable(
    context: PlanExecutionContext, plan: ExecutionPlan, lost: Mapping[str, tuple[str, ...]]
) -> None:
    """Log which dependencies a step misses, as Dagster does downstream of a failure."""
    if not lost:
        return
    for step in steps_in_order(plan):
        if step.key in lost:
            context.for_step(step).log.error(
                f"Dependencies for step {step.key} cannot run: {', '.join(lost[step.key])}. "
                "Not executing."
            )


def _checks(
    context: PlanExecutionContext, decisions: Decisions
) -> dict[str, dg.AssetCheckEvaluation]:
    """The selected checks of steps that do not run, by step key: nothing else evaluates them."""
    planned = decisions.planned
    left_alone = [key for key in planned if key in decisions.served or key in decisions.pruned]
    checked = {key: planned[key] for key in left_alone if planned[key].check is not None}
    entries = last_partition_events(context.instance, [found.asset for found in checked.values()])

    def evaluated(found: PlannedStep) -> dg.AssetCheckEvaluation:
        entry = entries.get(found.asset)
        try:
            return evaluate(found.step, found.op.graph, found.asset, entry)
        except MarinDagsterError as error:
            return unknown(found.asset, error)

    return map_parallel(evaluated, checked)


def _observe(
    context: Any,
    served: PlannedStep,
    drift: Drift | None,
    evaluation: dg.AssetCheckEvaluation | None,
) -> Iterator[dg.DagsterEvent]:
    # An observation, not a materialization: the asset's latest materialization stays the true
    # build, and automation conditions downstream do not fire.
    # Without a start, the chart of the run draws the step behind the end of the run.
    yield dg.DagsterEvent.step_start_event(context)
    message = f"Served from the cache: {address(served.step)}"
    observation = served_observation(served.asset, served.step, drift)
    yield dg.DagsterEvent.from_step(
        event_type=dg.DagsterEventType.ASSET_OBSERVATION,
        step_context=context,
        event_specific_data=AssetObservationData(observation),
        message=message,
    )
    if evaluation is not None:
        yield dg.DagsterEvent.asset_check_evaluation(context, evaluation)
    # The UI shows the message of a success, not of an observation.
    yield dg.DagsterEvent.from_step(
        event_type=dg.DagsterEventType.STEP_SUCCESS,
        step_context=context,
        event_specific_data=StepSuccessData(duration_ms=0.0),
        message=message,
    )


def _blocked(context: Any, step: StepLike, error: MarinDagsterError) -> dg.DagsterEvent:
    message = str(error)
    if address(step) not in message:
        message = f"step {address(step)}: {message}"
    info = SerializableErrorInfo(message, stack=[], cls_name=type(error).__name__)
    return dg.DagsterEvent.step_failure_event(
        context, StepFailureData(error=info, user_failure_data=None)
    )


def _skipped(context: Any, message: str) -> dg.DagsterEvent:
    return dg.DagsterEvent.from_step(
        event_type=dg.DagsterEventType.STEP_SKIPPED, step_context=context, message=message
    )
