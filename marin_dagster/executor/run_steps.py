"""The steps of a run that are ours, and the names for them in a run's config."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

import dagster as dg

from marin_dagster._compat import ExecutionPlan, ExecutionStep, PlanExecutionContext
from marin_dagster.assets.step_op import StepOp
from marin_dagster.cache import CacheState, LookUp, StepCache
from marin_dagster.cache.plan import with_inputs
from marin_dagster.errors import StepError
from marin_dagster.events.asset_records import AssetPartition
from marin_dagster.events.metadata_keys import RUNNER
from marin_dagster.runners import StepOverride
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.protocol import address
from marin_dagster.steps.text import did_you_mean, summarize


@dataclass(frozen=True)
class PlannedStep:
    """A step of the run that is ours."""

    op: StepOp
    """Its op, with the step of the run's partition."""
    step_key: str
    """The step key in Dagster; several partitions of a run share it."""
    asset: AssetPartition
    """The asset, by its key in this job, or the partition of it."""
    check: dg.AssetCheckKey | None
    """The asset's own check, when it is selected."""
    runner: str | None
    """The op's ``marin/runner`` tag."""

    @property
    def step(self) -> StepLike:
        """What it builds."""
        return self.op.step


def steps_of_run(context: PlanExecutionContext, plan: ExecutionPlan) -> dict[str, PlannedStep]:
    """The steps of the plan that build our assets, in topological order.

    By step key; in a run of several partitions, one of each partition by step key and partition. A
    step of which a run selects only the check is left out.

    Raises:
        GraphError: the steps of the run's partition do not fit those of other partitions.
    """
    layer = context.job_def.asset_layer
    # Partition by partition: only some graphs are kept, and the steps of one must share theirs.
    by_partition: dict[str | None, list[tuple[str, ExecutionStep, Any]]] = defaultdict(list)
    for step in steps_in_order(plan):
        compute = compute_of(context, step)
        if isinstance(compute, StepOp):
            assets_def = layer.get_assets_def_for_node(step.node_handle)
            if assets_def is not None and assets_def.keys:
                partitions = compute.run_partitions(context.dagster_run, context.instance)
                for partition in partitions:
                    name = step.key if len(partitions) == 1 else f"{step.key}[{partition}]"
                    by_partition[partition].append((name, step, assets_def))
    found = {}
    for partition, steps in by_partition.items():
        for name, step, assets_def in steps:
            (key,) = assets_def.keys
            op = compute_of(context, step).at(partition)
            found[name] = PlannedStep(
                op,
                step.key,
                AssetPartition(key, op.partition),
                next(iter(assets_def.check_keys), None),
                step.tags.get(RUNNER),
            )
    return found


def by_step_key(planned: Mapping[str, PlannedStep]) -> dict[str, list[str]]:
    """The keys of a run's steps, one for each partition, by step key."""
    keys: dict[str, list[str]] = defaultdict(list)
    for key, found in planned.items():
        keys[found.step_key].append(key)
    return keys


def steps_in_order(plan: ExecutionPlan) -> list[ExecutionStep]:
    """The steps that the plan executes, dependencies first, in time linear in their number.

    Dagster's own order takes time quadratic in the length of a chain.
    """
    deps = plan.get_executable_step_deps()
    order = TopologicalSorter({key: sorted(deps[key]) for key in sorted(deps)}).static_order()
    return [plan.get_executable_step_by_key(key) for key in order]


def compute_of(context: PlanExecutionContext, step: Any) -> Any:
    """The compute function of a step's op."""
    return getattr(context.job_def.get_node(step.node_handle).definition, "compute_fn", None)


def by_graph(planned: Mapping[str, PlannedStep]) -> Sequence[tuple[StepGraph, dict[str, str]]]:
    """Each graph of the run with the step keys of its selected output paths."""
    keys: dict[int, dict[str, str]] = defaultdict(dict)
    graphs: dict[int, StepGraph] = {}
    for key, found in planned.items():
        graph = found.op.graph
        graphs[id(graph)] = graph
        keys[id(graph)][found.step.output_path] = key
    return [(graphs[identity], key_of) for identity, key_of in keys.items()]


def look_up_graphs(
    graphs: Iterable[tuple[StepGraph, Mapping[str, str]]],
    cache_for: Callable[[Mapping[str, str]], StepCache],
) -> dict[str, LookUp]:
    """Look up the steps of all graphs, and their inputs, together."""
    steps: dict[StepCache, dict[str, StepLike]] = defaultdict(dict)
    for graph, key_of in graphs:
        steps[cache_for(key_of)] |= with_inputs(graph, key_of)
    found: dict[str, LookUp] = {}
    for cache, of_cache in steps.items():
        found |= cache.look_up_many(of_cache.values())
    return found


def across_partitions(
    planned: Mapping[str, PlannedStep],
    graphs: Iterable[tuple[StepGraph, Mapping[str, str]]],
    found: Mapping[str, LookUp],
    forced: Collection[str],
) -> tuple[frozenset[str], frozenset[str]]:
    """What the partitions of a run read of each other.

    Args:
        planned: the steps of the run.
        graphs: the graph of each partition, with the keys of its steps by output path.
        found: the look-ups of all.
        forced: keys of steps that are built although they are cached.

    Returns:
        Output paths that the run may build for other partitions, and those of them that steps
        which are not finished read.
    """
    partitioned = {
        one.step.output_path for one in planned.values() if one.op.partitions is not None
    }
    read = {
        dep
        for graph, key_of in graphs
        for path, key in key_of.items()
        if found[path].state is not CacheState.HIT or key in forced
        for dep in graph.dependencies(path)
        if dep in partitioned and dep not in key_of
    }
    return frozenset(partitioned), frozenset(read)


def dependencies_of_run(
    plan: ExecutionPlan, planned: Mapping[str, PlannedStep]
) -> Mapping[str, set[str]]:
    """What each step of the run reads; a partition reads what is of the same partition."""
    deps = plan.get_executable_step_deps()
    keys_of = by_step_key(planned)
    if all(len(keys) == 1 for keys in keys_of.values()):
        return deps
    found: dict[str, set[str]] = {}
    for step_key, reads in deps.items():
        for key in keys_of.get(step_key, [step_key]):
            own = planned[key].op.run_partition if key in planned else None
            found[key] = {
                dep
                for read in reads
                for dep in keys_of.get(read, [read])
                if own is None or dep not in planned or planned[dep].op.run_partition == own
            }
    return found


class StepNames:
    """Finds the steps that a run's config names: by name, name with hash, address of a lazy
    artifact, or asset key."""

    def __init__(self, context: PlanExecutionContext, planned: Mapping[str, PlannedStep]) -> None:
        self._context = context
        self._planned = planned
        self._keys: dict[str, set[str]] = defaultdict(set)
        for key, found in planned.items():
            for name in (*_names(found.step), found.asset.key.to_user_string()):
                self._keys[name].add(key)
        # A run may select only some of the steps that its config names.
        self._others = {key.to_user_string() for key in _asset_keys(context)}
        for graph, _ in by_graph(planned):
            self._others.update(name for step in graph.steps.values() for name in _names(step))

    def forced(self, force: bool | tuple[str, ...]) -> set[str]:
        if isinstance(force, bool):
            return set(self._planned) if force else set()
        return {key for name in force for key in self._named(name, "force")}

    def overrides(self, steps: Mapping[str, StepOverride]) -> dict[str, StepOverride]:
        return {key: own for name, own in steps.items() for key in self._named(name, "steps")}

    def _named(self, name: str, option: str) -> set[str]:
        if name in self._keys:
            return self._keys[name]
        if name in self._others:
            self._context.log.warning(f"{option} names {name!r}, which this run does not select.")
            return set()
        steps = summarize(dict.fromkeys(address(found.step) for found in self._planned.values()))
        hint = did_you_mean(name, self._keys) or f" Its steps: {steps}."
        raise StepError(f"{option} names {name!r}, but this run has no such step.{hint}")


def _names(step: StepLike) -> tuple[str, ...]:
    return step.name, step.name_with_hash, address(step)


def _asset_keys(context: PlanExecutionContext) -> Iterable[dg.AssetKey]:
    return context.job_def.asset_layer.asset_graph.get_all_asset_keys()
