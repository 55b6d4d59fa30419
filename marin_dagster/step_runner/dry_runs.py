"""Dry runs of a script: the decisions of a run, from the store, without a run of Dagster's."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import dagster as dg

from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.executor.graph_decisions import decide_planned, planned_steps
from marin_dagster.executor.step_outcomes import dry_run_line
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
    with recording or nullcontext() as instance:
        _, outcomes = decide_planned(
            planned_steps(MarinGraph.of(graph)),
            routing=Routing(RoutingConfig(), runners),
            retry_failed=retry_failed,
            instance=instance,
            required=graph.terminals,
        )
    for outcome in outcomes.values():
        show(dry_run_line(outcome))
