"""The steps of a run that are ours, and the names for them in a run's config."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

import dagster as dg

from marin_dagster._compat import ExecutionPlan, ExecutionStep, PlanExecutionContext
from marin_dagster.assets.step_op import StepOp
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
    """The steps of the plan that build our assets, by step key, in topological order.

    A step of which a run selects only the check is left out.

    Raises:
        GraphError: the steps of the run's partition do not fit those of other partitions.
    """
    found = {}
    layer = context.job_def.asset_layer
    for step in steps_in_order(plan):
        compute = compute_of(context, step)
        if isinstance(compute, StepOp):
            assets_def = layer.get_assets_def_for_node(step.node_handle)
            if assets_def is not None and assets_def.keys:
                (key,) = assets_def.keys
                check = next(iter(assets_def.check_keys), None)
                partition, *_ = compute.run_partitions(context.dagster_run, context.instance)
                op = compute.at(partition)
                asset = AssetPartition(key, op.partition)
                found[step.key] = PlannedStep(op, asset, check, step.tags.get(RUNNER))
    return found


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


def by_graph(planned: Mapping[str, PlannedStep]) -> Iterable[tuple[StepGraph, dict[str, str]]]:
    """Each graph of the run with the step keys of its selected output paths."""
    keys: dict[int, dict[str, str]] = defaultdict(dict)
    graphs: dict[int, StepGraph] = {}
    for key, found in planned.items():
        graph = found.op.graph
        graphs[id(graph)] = graph
        keys[id(graph)][found.step.output_path] = key
    return [(graphs[identity], key_of) for identity, key_of in keys.items()]


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
