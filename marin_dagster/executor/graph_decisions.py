"""What a run would do with steps, decided without a run of Dagster's."""

from collections.abc import Callable, Collection, Mapping

import dagster as dg

from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.assets.previous_builds import PreviousBuilds
from marin_dagster.assets.step_op import StepOp
from marin_dagster.cache import StepCache
from marin_dagster.events.asset_records import AssetPartition
from marin_dagster.executor.decisions import Decisions, decide_steps
from marin_dagster.executor.run_steps import PlannedStep, by_graph
from marin_dagster.executor.step_outcomes import StepOutcome, find_outcomes
from marin_dagster.runners import Routing, StepOverride


def planned_steps(marin: MarinGraph, partition: str | None = None) -> dict[str, PlannedStep]:
    """The steps of a graph that runs build, by step key.

    Args:
        marin: the graph.
        partition: the partition whose steps they are; None for a graph without partitions.
    """
    found = {}
    for path, name in marin.op_names.items():
        step, io_manager_key = marin.graph.steps[path], marin.io_manager_key
        op = StepOp(step, marin.graph, io_manager_key, {}, partitions=marin.partitions)
        op = op.at(partition)
        asset = AssetPartition(marin.keys[path], op.partition)
        found[name] = PlannedStep(op, name, asset, None, None)
    return found


def decide_planned(
    planned: Mapping[str, PlannedStep],
    *,
    routing: Routing,
    retry_failed: bool,
    instance: dg.DagsterInstance | None,
    required: Collection[str] = (),
    forced: Collection[str] = (),
    overrides: Mapping[str, StepOverride] | None = None,
    cache_for: Callable[[Mapping[str, str]], StepCache] = lambda _: StepCache(),
) -> tuple[Decisions, dict[str, StepOutcome]]:
    """The decisions of a run of these steps, and the outcome of each. Writes nothing.

    Args:
        planned: the steps, by step key.
        routing: where they run.
        retry_failed: whether the run builds steps whose last attempt failed.
        instance: knows earlier builds; None for none.
        required: output paths that are needed whatever reads them.
        forced: step keys that are built although they are cached.
        overrides: the run's own settings for steps, by step key.
        cache_for: the cache of a graph's steps; takes their step keys by output path.
    """
    own = overrides or {}
    reads: dict[str, set[str]] = {}
    for graph, key_of in by_graph(planned):
        for path, key in key_of.items():
            reads[key] = {key_of[dep] for dep in graph.dependencies(path) if dep in key_of}
    decisions = decide_steps(
        planned,
        reads,
        cache_for=cache_for,
        instance=instance,
        place=lambda key, found: routing.place(found.step, tag=found.runner, override=own.get(key)),
        builds_failed=lambda _: retry_failed,
        required=required,
        forced=frozenset(forced),
    )
    history = PreviousBuilds(instance, [found.asset for found in planned.values()])
    return decisions, find_outcomes(planned, decisions, history)
