"""Dry runs of a script: the decisions of a run, from the store, without a run of Dagster's."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import dagster as dg

from marin_dagster.assets.build_history import BuildHistory
from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.assets.step_op import StepOp
from marin_dagster.cache import StepCache
from marin_dagster.executor.decisions import decide_steps
from marin_dagster.executor.run_steps import PlannedStep
from marin_dagster.executor.step_outcomes import dry_run_line, find_outcomes
from marin_dagster.runners import Routing, RoutingConfig, Runner
from marin_dagster.step_runner.console import show
from marin_dagster.steps import StepGraph


def log_dry_run(
    graph: StepGraph,
    runners: Mapping[str, Runner],
    *,
    retry_failed: bool,
    recording: AbstractContextManager[dg.DagsterInstance] | None,
) -> None:
    """Log what a run would do with each step, and why.

    Args:
        graph: the steps.
        runners: runners made in code, by name.
        retry_failed: whether it would build steps whose last attempt failed.
        recording: opens the instance that knows earlier builds; None for none.
    """
    marin = MarinGraph.of(graph)
    planned = {
        name: PlannedStep(
            StepOp(graph.steps[path], graph, marin.io_manager_key, {}), marin.keys[path], None, None
        )
        for path, name in marin.op_names.items()
    }
    reads = {
        name: {marin.op_names[dep] for dep in graph.dependencies(path) if dep in marin.op_names}
        for path, name in marin.op_names.items()
    }
    routing = Routing(RoutingConfig(), runners)
    with recording or nullcontext() as instance:
        decisions = decide_steps(
            planned,
            reads,
            cache_for=lambda _: StepCache(),
            instance=instance,
            place=lambda _, found: routing.place(found.step, tag=None, override=None),
            builds_failed=lambda _: retry_failed,
            required=graph.terminals,
        )
        history = BuildHistory(instance, [found.asset_key for found in planned.values()])
        outcomes = find_outcomes(planned, decisions, history)
    for outcome in outcomes.values():
        show(dry_run_line(outcome))
