"""``build_marin_schedule``: each tick reads the cache and launches only what must run."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import dagster as dg

from marin_dagster.assets.cache_resource import cache_of
from marin_dagster.assets.marin_graph import DEFAULT_IO_MANAGER_KEY, MarinGraph, Steps
from marin_dagster.assets.translator import DagsterMarinTranslator
from marin_dagster.automation.due_steps import due_partitions, due_steps
from marin_dagster.automation.tick_decisions import decide_tick, skip_text
from marin_dagster.errors import StepError

DEFAULT_JOB_NAME = "materialize_steps"
DEFAULT_LOOK_BACK = 7
"""Partitions of time before the last that a tick looks at."""


def build_marin_schedule(
    steps: Steps,
    cron_schedule: str | Sequence[str],
    *,
    name: str | None = None,
    job_name: str = DEFAULT_JOB_NAME,
    translator: DagsterMarinTranslator | None = None,
    io_manager_key: str = DEFAULT_IO_MANAGER_KEY,
    execution_timezone: str | None = None,
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
    run_config: dg.RunConfig | Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    look_back: int = DEFAULT_LOOK_BACK,
) -> dg.ScheduleDefinition:
    """A schedule that reads the cache at each tick and runs only the steps that must run.

    It requests one run of these steps, or skips the tick and gives the reason. It decides as a run
    of the whole job would: steps that are finished, or that only finished steps need, are left out;
    a ``dev`` version always runs; a step whose last attempt failed runs again.

    Also left out, with everything downstream and a reason in the tick's log:

    - steps that cannot run, for example because their external data is missing;
    - steps that a queued or running run of this deployment will build, whatever launched it and
      even if the code has changed since, so that no runs pile up that would only wait. (A run whose
      worker died must be terminated.)

    A step that a worker elsewhere is building is included, because the run waits for it and serves
    it, unless no other step could start.

    When the store refuses or does not answer, the tick fails and nothing is launched.

    A function that returns the steps is called again at each tick, so that a step which depends on
    the day is that of the day. If the names of its steps have changed, the tick fails: the code
    location must be reloaded.

    With partitions, a tick decides about each due partition as about a graph, and requests one run
    for each that has something to run. Due are, of time windows, the last that has ended and
    ``look_back`` earlier ones; of static and dynamic partitions, all; of multi-partitions, those
    that are due in each dimension. A tick requests at most 100 runs; later ticks request the rest.
    Steps that all partitions share and that no partition needs, such as a leaderboard, get a run
    without a partition once what they read is finished.

    Args:
        steps: the steps, or a function that returns them, or their graph; for partitions, a
            :meth:`MarinGraph.of <MarinGraph.of>`.
        cron_schedule: when to tick, as in ``dg.ScheduleDefinition``.
        name: the schedule's name; ``<job_name>_schedule`` unless given.
        job_name: the job to run, by default that of ``build_definitions``. Only steps that it
            selects are considered.
        translator: the translator of the assets.
        io_manager_key: resource key of the :class:`MarinIOManager`, whose lease times apply.
        execution_timezone: time zone of ``cron_schedule``; UTC unless given.
        default_status: whether the schedule is on when it is first loaded.
        run_config: config of the runs.
        tags: tags of the runs.
        look_back: how many partitions before the last are due, of time windows.

    Raises:
        GraphError: the graph is wrong; see :meth:`StepGraph.from_steps`.
        CollisionError: two steps have one asset key.
    """
    marin = MarinGraph.of(steps, translator=translator, io_manager_key=io_manager_key)
    resource_key = marin.io_manager_key
    schedule_name = name or f"{job_name}_schedule"
    asking = f"schedule {schedule_name!r}"

    def evaluate(
        context: dg.ScheduleEvaluationContext,
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        cache = cache_of(context.resources, resource_key, asking)
        now = marin.refreshed()
        instance = None if context.instance_ref is None else context.instance
        partitions: Sequence[str] = ()
        if now.partitions is not None:
            definition = now.partitions.definition
            partitions = due_partitions(definition, _time_of(context), look_back, instance)
        due = due_steps(now, partitions, _keys_of_job(context, job_name, now, asking))
        decisions = decide_tick(now, due, cache, instance, asking)
        requests = [
            dg.RunRequest(
                run_key=decision.run_key,
                partition_key=decision.partition,
                asset_selection=list(decision.request),
                # No checks: they would compare what the run has just built.
                asset_check_keys=[],
                run_config=run_config,
                tags=tags,
            )
            for decision in decisions
            if decision.starts
        ]
        if not requests:
            yield dg.SkipReason(skip_text(decisions))
            return
        for decision in decisions:
            for level, line in decision.lines:
                context.log.log(level, line)
        yield from requests

    return dg.ScheduleDefinition(
        name=schedule_name,
        cron_schedule=cron_schedule,
        job_name=job_name,
        execution_fn=evaluate,
        execution_timezone=execution_timezone,
        default_status=default_status,
        description="Runs the steps that are not in the cache.",
        required_resource_keys={resource_key},
    )


def _keys_of_job(
    context: dg.ScheduleEvaluationContext, job_name: str, marin: MarinGraph, asking: str
) -> Collection[dg.AssetKey]:
    """The assets that the job selects, of those that steps build."""
    buildable = {marin.keys[path] for path in marin.op_names}
    try:
        repository = context.repository_def
    except dg.DagsterInvariantViolationError:
        # A context built by a test.
        return buildable
    of_job = repository.get_job(job_name).asset_layer.selected_asset_keys
    selected = {key for key in buildable if key in of_job}
    if not selected:
        raise StepError(
            f"{asking}: job {job_name!r} selects none of its {len(buildable)} steps. Give the "
            "schedule the steps and the translator of the job's assets."
        )
    return selected


def _time_of(context: dg.ScheduleEvaluationContext) -> datetime | None:
    """The time of the tick; None in a context built by a test without one."""
    try:
        return context.scheduled_execution_time
    except dg.DagsterInvariantViolationError:
        return None
