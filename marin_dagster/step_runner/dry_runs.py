"""Dry runs of a script: the decisions of a run, from the store, without a run of Dagster's."""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import dagster as dg

from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.executor.graph_decisions import decide_planned, planned_steps
from marin_dagster.executor.run_steps import PlannedStep
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
    planned = planned_steps(MarinGraph.of(graph))
    log_planned(planned, graph.terminals, runners, retry_failed=retry_failed, recording=recording)


def log_planned(
    planned: Mapping[str, PlannedStep],
    required: Collection[str],
    runners: Mapping[str, Runner],
    *,
    retry_failed: bool,
    recording: AbstractContextManager[dg.DagsterInstance] | None,
) -> None:
    """Log what a run would do with each of these steps, and why.

    Args:
        planned: the steps, by step key.
        required: output paths that are needed whatever reads them.
        runners: runners made in code, by name.
        retry_failed: whether it would build steps whose last attempt failed.
        recording: opens the instance that knows earlier builds; None for none.
    """
    with recording or nullcontext() as instance:
        _, outcomes = decide_planned(
            planned,
            routing=Routing(RoutingConfig(), runners),
            retry_failed=retry_failed,
            instance=instance,
            required=required,
        )
    for key, outcome in outcomes.items():
        partition = planned[key].asset.partition
        name = outcome.name if partition is None else f"{outcome.name} [{partition}]"
        show(dry_run_line(replace(outcome, name=name)))
