"""``run_graph``: runs what a plan says must run, and reports what became of each step."""

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Any

import dagster as dg

from marin_dagster._compat import InMemoryJob, capture_interrupts, execute_run
from marin_dagster.cli.graph_names import NamedGraph
from marin_dagster.cli.graph_plan import GraphPlan, open_instance, plan_graph
from marin_dagster.cli.progress import LineProgress, Progress
from marin_dagster.cli.run import RunResult, StepEnd, count_ends
from marin_dagster.cli.run_states import BUILT, CACHED, FAILED, RUNNING, STOPPED, WAITING, RunStates
from marin_dagster.cli.settings import Settings
from marin_dagster.errors import MarinDagsterError
from marin_dagster.step_runner.cached_graphs import report_outputs
from marin_dagster.step_runner.recording import temporary_instance, would_fail_runs
from marin_dagster.steps.protocol import address

# Progress shows what Dagster's console would.
_LOGGERS = {"console": {"config": {"log_level": "CRITICAL"}}}


def run_graph(
    named: NamedGraph,
    settings: Settings,
    *,
    select: str | None,
    force: Collection[str],
    retry_failed: bool | None,
    runners: Collection[str],
    max_concurrent: int | None,
    quiet: bool,
) -> RunResult:
    """Plan, run and record.

    Args:
        named: the graph.
        settings: the project's.
        max_concurrent: steps at once; the project's setting, else that of the graph's executor,
            when None.
        quiet: show the progress on stderr only.

    The others are those of :func:`plan_graph`.

    Raises:
        GraphError: the graph or the selection is wrong, or an option names no step.
        RoutingError: no runner takes some steps; nothing ran.
        MarinDagsterError: the run could not start.
    """
    began = time.monotonic()
    with open_instance() as instance:
        found = plan_graph(
            named,
            settings,
            instance=instance,
            select=select,
            force=force,
            retry_failed=retry_failed,
            runners=runners,
        )
        found.decisions.check_places()
        limit = settings.max_concurrent if max_concurrent is None else max_concurrent
        config = dict(found.config) if limit is None else {**found.config, "max_concurrent": limit}
        states = RunStates({key: one.step for key, one in found.assets.planned.items()})
        interrupted, run_id = False, None
        if found.paths("run", "elsewhere", "blocked"):
            progress = _progress(states, found, quiet=quiet)
            interrupted, run_id = _run(found, config, states, progress, instance)
        if instance is not None and (cached := found.paths("cached")):
            report_outputs(instance, found.graph, found.assets.keys, cached)
    steps = _ends(found, states)
    seconds = round(time.monotonic() - began, 3)
    return RunResult(found.name, steps, count_ends(steps), seconds, run_id, interrupted)


def _run(
    found: GraphPlan,
    config: Mapping[str, Any],
    states: RunStates,
    progress: Progress,
    kept: dg.DagsterInstance | None,
) -> tuple[bool, str | None]:
    """Run the steps that must run; whether Ctrl-C ended it, and the run's id if it is recorded."""
    paths = found.paths("run", "elsewhere", "blocked")
    job = found.assets.job([found.assets.keys[path] for path in paths])
    run_config = {"execution": {"config": config}, "loggers": _LOGGERS}
    records_run = kept is not None and not would_fail_runs(kept)
    with ExitStack() as stack:
        instance = kept
        if instance is None or not records_run:
            instance = stack.enter_context(temporary_instance())
        run = instance.create_run_for_job(job_def=job, run_config=run_config)
        instance.add_event_listener(run.run_id, _listener(states, progress, instance))
        stack.enter_context(progress)
        try:
            with capture_interrupts():
                result = execute_run(InMemoryJob(job), run, instance, raise_on_error=True)
        except (dg.DagsterExecutionInterruptedError, KeyboardInterrupt):
            interrupted = True
        else:
            interrupted = False
            if not result.success and not states.with_state(FAILED):
                raise MarinDagsterError(_failure(result))
        if kept is not None and not records_run:
            built = [path for path in paths if states.state(path) in (BUILT, CACHED)]
            report_outputs(kept, found.graph, found.assets.keys, built)
    return interrupted, run.run_id if records_run else None


def _listener(
    states: RunStates, progress: Progress, instance: dg.DagsterInstance
) -> Callable[[dg.EventLogEntry], None]:
    def listen(entry: dg.EventLogEntry) -> None:
        if states.take(entry, instance):
            progress.changed(entry.step_key)

    return listen


def _failure(result: Any) -> str:
    messages = [event.message for event in result.all_events if event.is_run_failure]
    errors = [
        data.error.message
        for event in result.all_events
        if event.is_run_failure and (data := event.job_failure_data) and data.error
    ]
    return f"the run failed: {(errors or messages or ['see its log'])[-1]}"


def _progress(states: RunStates, found: GraphPlan, *, quiet: bool) -> Progress:
    to_run = len(found.paths("run", "elsewhere", "blocked"))
    if sys.stdout.isatty() and not quiet and os.environ.get("TERM") != "dumb":
        from marin_dagster.cli.live_table import LiveProgress

        return LiveProgress(states, to_run)
    return LineProgress(states, to_run, sys.stderr if quiet else sys.stdout)


def _ends(found: GraphPlan, states: RunStates) -> list[StepEnd]:
    steps = []
    for path, step in found.graph.steps.items():
        if path not in found.outcomes and path not in found.external:
            continue
        action = found.action(path)
        state = states.of_path.get(path)
        end = {"cached": "cached", "pruned": "pruned", "external": "external"}.get(action)
        if end is None:
            end = _END[state.state] if state is not None else "not run"
        steps.append(
            StepEnd(
                step=address(step),
                name=step.name,
                path=path,
                asset=found.asset(path),
                end=end,
                seconds=state.seconds if state is not None and end == "built" else None,
                error=state.error if state is not None and end == "failed" else None,
            )
        )
    return steps


_END = {
    BUILT: "built",
    CACHED: "cached",
    FAILED: "failed",
    STOPPED: "stopped",
    RUNNING: "stopped",
    WAITING: "not run",
}
