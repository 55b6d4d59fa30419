"""``ChosenPartitions``: the partitions that a script asks for; ``run_partitions``: runs them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError as OrderError
from graphlib import TopologicalSorter
from typing import Any

import dagster as dg

from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.assets.partition_mappings import is_dynamic
from marin_dagster.assets.partitions import GraphPartitions, as_key
from marin_dagster.automation.due_steps import DueSteps, due_steps
from marin_dagster.cache.plan import CachePlan
from marin_dagster.errors import GraphError
from marin_dagster.events.asset_records import AssetPartition
from marin_dagster.executor.graph_decisions import planned_steps
from marin_dagster.executor.run_steps import PlannedStep
from marin_dagster.executor.stuck_steps import waits_text
from marin_dagster.step_runner.cached_graphs import log_cached, look_up, report_partitions
from marin_dagster.step_runner.console import show
from marin_dagster.step_runner.dry_runs import log_planned
from marin_dagster.step_runner.external_outputs import external_faults, log_external_faults
from marin_dagster.step_runner.recording import (
    keeps_records,
    recording,
    temporary_instance,
    would_fail_runs,
)
from marin_dagster.step_runner.results import StepResults
from marin_dagster.step_runner.runner_call import RunnerCall
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.partitions import Partition
from marin_dagster.steps.protocol import is_external
from marin_dagster.steps.text import summarize


@dataclass(frozen=True, eq=False)
class ChosenPartitions:
    """Partitions of a graph that one call builds, one run after the other."""

    marin: MarinGraph
    keys: tuple[str, ...]
    """The partitions, as the caller wrote them."""

    @classmethod
    def of(
        cls,
        steps: Callable[[str], Iterable[Any]] | MarinGraph,
        keys: Sequence[str],
        *,
        strict: bool = False,
    ) -> "ChosenPartitions":
        """The partitions of a function or graph.

        Args:
            steps: returns the steps of one partition; or a graph with partitions.
            keys: the partitions.
            strict: whether undeclared inputs are errors; see :meth:`MarinGraph.of`.

        Raises:
            GraphError: the graph has no partitions or not these, their graphs do not fit together,
                or there is no order in which to build them.
        """
        if isinstance(keys, str) or not keys or not all(isinstance(key, str) for key in keys):
            raise GraphError(
                f"partition_keys: {keys!r} is not a list of partitions. Give the key of at least "
                "one, such as partition_keys=['2026-11-01']."
            )
        if not isinstance(steps, MarinGraph):
            if any(isinstance(key, dg.MultiPartitionKey) for key in keys):
                raise GraphError(
                    "the keys are those of multi-partitions. Give run() a MarinGraph.of(…) with "
                    "their partitions_def."
                )
            static = dg.StaticPartitionsDefinition(list(dict.fromkeys(keys)))
            steps = MarinGraph.of(steps, partitions_def=static, strict=strict)
            _check_reads(steps)
        elif strict and not steps.strict:
            steps = replace(steps, strict=True)
        if steps.partitions is None:
            raise GraphError(
                "the graph has no partitions. Give MarinGraph.of(…) partitions_def, or leave out "
                "partition_keys."
            )
        chosen = cls(steps, _checked(steps.partitions, keys))
        for key in chosen.keys:
            steps.partitions.steps.at(key)
        chosen.in_order  # noqa: B018  # raises
        return chosen

    @property
    def partitions(self) -> GraphPartitions:
        """The graph's partitions."""
        assert self.marin.partitions is not None
        return self.marin.partitions

    @cached_property
    def in_order(self) -> Sequence[str]:
        """The partitions, each after those that its steps read."""
        owners = {
            step.output_path: partition.key
            for partition in map(self._at, self.keys)
            for name, step in partition.steps.items()
            if self.partitions.is_partitioned(name)
        }
        order: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(self.keys, ()))
        for partition in map(self._at, self.keys):
            for name in filter(self.partitions.is_partitioned, partition.steps):
                for paths in partition.inputs(name)[1].values():
                    order.add(partition.key, *(owners[path] for path in paths if path in owners))
        try:
            return tuple(order.static_order())
        except OrderError as error:
            raise GraphError(
                f"the partitions {summarize(map(repr, error.args[1]))} read each other's steps, so "
                "there is no order in which runs can build them."
            ) from None

    @cached_property
    def graph(self) -> StepGraph:
        """What all partitions ask for, and everything that it needs."""
        wanted: list[StepLike] = []
        for key in self.in_order:
            graph = self._at(key).graph
            own = self._at(key).paths
            wanted.extend(graph.steps[path] for path in graph.terminals if path in own)
        return StepGraph.from_steps(wanted)

    @cached_property
    def assets(self) -> Mapping[str, AssetPartition]:
        """The asset, or its partition, of each output path of the partitions."""
        keys = {step.name: self.marin.keys[path] for path, step in self.marin.steps.items()}
        return {
            step.output_path: AssetPartition(
                keys[name], key if self.partitions.is_partitioned(name) else None
            )
            for key in self.in_order
            for name, step in self._at(key).steps.items()
        }

    @property
    def code_versions(self) -> Mapping[dg.AssetKey, str]:
        """The code version of each asset that has one."""
        specs = self.marin.specs.values()
        return {spec.key: spec.code_version for spec in specs if spec.code_version}

    def runs(self) -> Iterable[DueSteps]:
        """What each run builds: a partition, and last the steps that none of them needs."""
        buildable = {self.marin.keys[path] for path in self.marin.op_names}
        return due_steps(self.marin, self.in_order, buildable)

    def waiting(self, graph: StepGraph, seen: CachePlan) -> frozenset[str]:
        """Shared steps that need partitions which are neither chosen nor built."""
        stuck = {
            path
            for path, missing in seen.run.blocked.items()
            if self.assets[path].partition is None
            and self.assets.keys().isdisjoint(missing)
            and not any(is_external(graph.steps[dep]) for dep in missing)
        }
        below = {path for path in seen.below(graph, stuck) if self.assets[path].partition is None}
        return frozenset(stuck | below)

    def results(self, *, dry_run: bool) -> Mapping[str, StepResults]:
        """The outputs by partition."""
        found = {}
        for key in self.keys:
            partition = self._at(key)
            own = {name: step.output_path for name, step in partition.steps.items()}
            found[str(key)] = StepResults(partition.graph, dry_run=dry_run, own=own)
        return found

    def _at(self, key: str) -> Partition:
        return self.partitions.steps.at(key)


def run_partitions(
    chosen: ChosenPartitions, call: RunnerCall, given: dg.DagsterInstance | None
) -> None:
    """Build what is not cached: a run for each partition, and none where all is cached.

    Args:
        chosen: the partitions.
        call: keeps what fails.
        given: the caller's instance; see :func:`recording`.
    """
    graph, retry_failed = chosen.graph, call.execution["retry_failed"]
    if call.execution["dry_run"]:
        log_external_faults(graph, call.drifts)
        _log_dry_run(chosen, call, given)
        return
    for step, fault in external_faults(graph, call.drifts, retry_failed=retry_failed):
        call.fail(step, fault, chosen.assets[step.output_path].partition)
    seen = look_up(graph, chosen.assets)
    waiting = chosen.waiting(graph, seen)
    for path in waiting:
        show(waits_text(graph.steps[path]))
    must_run = (seen.run.run | seen.run.blocked.keys() | seen.unknown.keys()) - waiting
    if not must_run:
        log_cached(graph, seen, call.drifts)
    if not must_run and not keeps_records(given):
        return
    with recording(given) as instance:
        if must_run:
            monitored = would_fail_runs(instance)
            with temporary_instance() if monitored else nullcontext(instance) as of_runs:
                _run_each(chosen, call, of_runs)
        if keeps_records(given):
            report_partitions(instance, graph, chosen.assets, chosen.code_versions)


def _run_each(chosen: ChosenPartitions, call: RunnerCall, instance: dg.DagsterInstance) -> None:
    failures: dict[str, list[BaseException]] = {}
    definitions = call.definitions(chosen.marin, chosen.graph.terminals, failures)
    definition = chosen.partitions.definition
    keys = chosen.marin.keys
    step_keys = {keys[path]: name for path, name in chosen.marin.op_names.items()}
    for due in chosen.runs():
        # As in one run: a failed step and those downstream of it do not run again.
        lost = call.lost(due.graph)
        selected = {path: asset for path, asset in due.assets.items() if path not in lost}
        if not selected:
            continue
        seen = look_up(due.graph, selected)
        waiting = chosen.waiting(due.graph, seen)
        if not (seen.run.run | seen.run.blocked.keys() | seen.unknown.keys()) - waiting:
            continue
        failures.clear()
        raised = call.run(
            definitions,
            instance,
            failures,
            assets=[asset.key for path, asset in selected.items() if path not in waiting],
            tags=definition.get_tags_for_partition_key(due.partition) if due.partition else None,
        )
        for path, asset in selected.items():
            if (error := raised.get(step_keys[asset.key])) is not None:
                if due.partition is not None:
                    error.add_note(f"in partition {due.partition}")
                call.fail(due.graph.steps[path], error, asset.partition)


def _log_dry_run(
    chosen: ChosenPartitions, call: RunnerCall, given: dg.DagsterInstance | None
) -> None:
    # One graph for all: what one partition would build, another may read.
    planned: dict[str, PlannedStep] = {}
    for key in chosen.in_order:
        for name, step in planned_steps(chosen.marin, key).items():
            op = replace(step.op, graph=chosen.graph)
            planned.setdefault(
                name if op.partition is None else f"{name}[{key}]", replace(step, op=op)
            )
    log_planned(
        planned,
        chosen.graph.terminals,
        call.runners,
        retry_failed=call.execution["retry_failed"],
        recording=recording(given) if keeps_records(given) else None,
    )


def _check_reads(marin: MarinGraph) -> None:
    """Refuse steps that read partitions which only a ``partitions_def`` would list."""
    assert marin.partitions is not None
    try:
        _ = marin.partitions.dependencies
    except GraphError as error:
        raise GraphError(
            f"{error} If it belongs to a partition that partition_keys does not have, add its key, "
            "or list all partitions: run(MarinGraph.of(steps_for, partitions_def=…), "
            "partition_keys=[…])."
        ) from error


def _checked(partitions: GraphPartitions, keys: Sequence[str]) -> tuple[str, ...]:
    """The keys, once each and as the function gets them.

    Raises:
        GraphError: one is not among the partitions.
    """
    definition = partitions.definition
    found = tuple(dict.fromkeys(as_key(definition, key) for key in keys))
    if not is_dynamic(definition):
        known = set(definition.get_partition_keys())
        if unknown := [key for key in found if key not in known]:
            raise GraphError(
                f"partition_keys: {summarize(map(repr, unknown))} is not among the graph's "
                f"partitions ({summarize(definition.get_partition_keys())})."
            )
    return found
