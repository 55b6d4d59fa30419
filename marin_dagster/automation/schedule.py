"""``build_marin_schedule``: each tick reads the cache and launches only what must run."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from marin_dagster.assets.cache_resource import cache_of
from marin_dagster.assets.marin_graph import DEFAULT_IO_MANAGER_KEY, MarinGraph, Steps
from marin_dagster.assets.translator import DagsterMarinTranslator
from marin_dagster.cache import CacheState
from marin_dagster.cache.plan import CachePlan, blocked_message, nothing_to_run, plan_from_cache
from marin_dagster.errors import StepError, StoreError
from marin_dagster.events.asset_records import unfinished_runs
from marin_dagster.steps import StepGraph
from marin_dagster.steps.protocol import address, is_external
from marin_dagster.steps.text import shorten_middle, summarize

DEFAULT_JOB_NAME = "materialize_steps"


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

    Args:
        steps: the steps, or a function that returns them, or their graph; called once, here.
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

    Raises:
        GraphError: the graph is wrong; see :meth:`StepGraph.from_steps`.
        CollisionError: two steps have one asset key.
    """
    marin = MarinGraph.of(steps, translator=translator, io_manager_key=io_manager_key)
    graph, keys, resource_key = marin.graph, marin.keys, marin.io_manager_key
    schedule_name = name or f"{job_name}_schedule"
    buildable = {keys[path]: path for path, step in graph.steps.items() if not is_external(step)}

    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        asking = f"schedule {schedule_name!r}"
        cache = cache_of(context.resources, resource_key, asking)
        selected = _selected(context, job_name, buildable, asking)
        seen = plan_from_cache(cache, graph, selected=selected)
        _check_store(seen, asking)
        in_order = {path: key for path, key in keys.items() if path in seen.run.run}
        tick = _decide(graph, seen, _taken_on(context, in_order))
        if not tick.starts:
            return dg.SkipReason("\n".join(tick.reasons) or nothing_to_run(seen))
        to_run = [address(graph.steps[path]) for path in tick.request]
        context.log.info(f"{_count(to_run)} must run: {summarize(to_run)}.")
        for reason in tick.reasons:
            context.log.warning(reason)
        return dg.RunRequest(
            asset_selection=[keys[path] for path in tick.request],
            # No checks: they would compare what the run has just built.
            asset_check_keys=[],
            run_config=run_config,
            tags=tags,
        )

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


@dataclass(frozen=True)
class _Tick:
    request: Sequence[str]
    """Output paths of the steps that a run could finish now."""
    starts: bool
    """Whether such a run would do more than wait."""
    reasons: Sequence[str]
    """Why steps that must run are left out or have to wait."""


def _decide(graph: StepGraph, seen: CachePlan, taken_on: Mapping[str, dg.DagsterRun]) -> _Tick:
    stuck = {path: blocked_message(graph, path, deps) for path, deps in seen.run.blocked.items()}
    for path, error in seen.unknown.items():
        stuck[path] = f"step {address(graph.steps[path])}: {error}"
    waiting = seen.below(graph, stuck.keys() | taken_on.keys())
    able = seen.run.run - taken_on.keys() - waiting
    request = [path for path in graph.steps if path in able]
    elsewhere = {
        path: seen.found[path].owner
        for path in request
        if seen.found[path].state is CacheState.RUNNING
    }
    starts = any(
        path not in elsewhere and able.isdisjoint(graph.dependencies(path)) for path in request
    )
    names = {path: address(graph.steps[path]) for path in graph.steps}
    reasons = []
    if stuck:
        reasons.append(f"{_count(stuck)} cannot run: {summarize(stuck.values(), ' ')}")
    by_run: dict[str, list[str]] = defaultdict(list)
    for path, run in taken_on.items():
        by_run[f"Run {run.run_id} ({run.status.value})"].append(names[path])
    if by_run:
        will_build = (
            f"{run_name} will build {summarize(steps)}" for run_name, steps in by_run.items()
        )
        reasons.append(f"{summarize(will_build, '; ')}.")
    if elsewhere:
        builders = [
            f"{names[path]} by {shorten_middle(str(owner))}" for path, owner in elsewhere.items()
        ]
        reasons.append(f"Being built elsewhere: {summarize(builders)}.")
    if not starts:
        waiting |= able - elsewhere.keys()
    if waiting:
        below = [name for path, name in names.items() if path in waiting]
        reasons.append(f"{_count(waiting)} below must wait: {summarize(below)}.")
    return _Tick(request, starts, reasons)


def _selected(
    context: dg.ScheduleEvaluationContext,
    job_name: str,
    buildable: Mapping[dg.AssetKey, str],
    asking: str,
) -> Collection[str]:
    try:
        repository = context.repository_def
    except dg.DagsterInvariantViolationError:
        # A context built by a test.
        return list(buildable.values())
    of_job = repository.get_job(job_name).asset_layer.selected_asset_keys
    selected = [path for key, path in buildable.items() if key in of_job]
    if not selected:
        raise StepError(
            f"{asking}: job {job_name!r} selects none of its {len(buildable)} steps. Give the "
            "schedule the steps and the translator of the job's assets."
        )
    return selected


def _check_store(seen: CachePlan, asking: str) -> None:
    refused = [error for error in seen.unknown.values() if isinstance(error, StoreError)]
    if refused:
        raise StoreError(
            f"{asking}: {len(refused)} of {len(seen.found)} outputs could not be looked up, so "
            f"nothing is launched. The next tick tries again. First error: {refused[0]}"
        ) from refused[0]


def _taken_on(
    context: dg.ScheduleEvaluationContext, to_run: Mapping[str, dg.AssetKey]
) -> dict[str, dg.DagsterRun]:
    if context.instance_ref is None:
        # A context built by a test.
        return {}
    runs = unfinished_runs(context.instance, list(to_run.values()))
    return {path: runs[key] for path, key in to_run.items() if key in runs}


def _count(steps: Collection[str]) -> str:
    return f"{len(steps)} step{'s' * (len(steps) != 1)}"
