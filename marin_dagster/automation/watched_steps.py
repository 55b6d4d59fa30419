"""Which steps a tick of the cache sensor checks: all, or of a graph with partitions, some."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import dagster as dg

from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.assets.partitions import GraphPartitions
from marin_dagster.automation.store_changes import WatchedStep
from marin_dagster.errors import MarinDagsterError
from marin_dagster.events.asset_records import AssetPartition
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.partitions import Partition
from marin_dagster.steps.protocol import code_version

LOOK_UPS_PER_TICK = 1_000
"""Partitioned steps that a tick looks up: 2 s on a store with 50 ms latency."""

_NEWEST_SHARE = 4
"""One in so many of a tick's partitions is among the newest; the others take turns."""
_EVALUATING_S = 15.0
"""Seconds after which a tick calls the function of no more partitions: Dagster gives it 60."""


@dataclass(frozen=True, eq=False)
class WatchedSteps:
    """The steps that one tick checks."""

    steps: Sequence[WatchedStep]
    """Inputs before what reads them."""
    graph: StepGraph
    """The graph of steps without partitions."""
    partitions: Mapping[str, Partition]
    """The checked partitions by key."""
    turns: Sequence[str] = ()
    """Keys of those partitions whose turn it was, in order."""
    position: int = 0
    """The first of ``turns`` among the older partitions."""
    older: int = 0
    """How many partitions take turns."""
    refused: Mapping[str, MarinDagsterError] | None = None
    """Partitions whose graph is wrong, with the error."""
    unchecked: Sequence[AssetPartition] = ()
    """Partitions that later ticks check."""

    def next_position(self, put_off: Collection[AssetPartition]) -> int:
        """Where the next tick goes on: behind the partitions of this tick, but not behind one with
        a change that this tick has not reported."""
        waiting = {asset.partition for asset in put_off}
        ahead = 0
        while ahead < len(self.turns) and self.turns[ahead] not in waiting:
            ahead += 1
        return (self.position + ahead) % self.older if self.older else 0

    def needed_by(self, item: WatchedStep, is_built: Callable[[str], bool]) -> StepLike | None:
        """As :meth:`StepGraph.needed_by`, within the partition of a step; for a step without one,
        within the graph and each partition that the tick checks.

        Args:
            item: the step.
            is_built: whether the output at the path of a checked step is finished.
        """
        path = item.step.output_path
        if item.partition is not None:
            return _needed_in(self.partitions[item.partition], path, is_built)
        if not self.partitions:
            return self.graph.needed_by(path, is_built)
        needing = (
            _needed_in(partition, path, is_built)
            for partition in self.partitions.values()
            if path in partition.graph.steps
        )
        return next((step for step in needing if step is not None), None)


def watched_steps(
    marin: MarinGraph, instance: dg.DagsterInstance, position: int = 0
) -> WatchedSteps:
    """The steps that a tick checks.

    Without partitions, all. With partitions: the steps that all partitions share, those of the
    newest partitions, and those of some others, so that all have their turn on later ticks.

    Args:
        marin: the graph.
        instance: knows the keys of dynamic partitions.
        position: where the partitions that take turns go on.

    Raises:
        MarinDagsterError: the graph of no partition can be made.
    """
    if marin.partitions is None:
        by_key = {marin.keys[path]: step for path, step in marin.graph.steps.items()}
        steps = [_watched(marin, path, step, by_key) for path, step in marin.graph.steps.items()]
        return WatchedSteps(steps, marin.graph, {})
    definition = marin.partitions.definition
    keys = definition.get_partition_keys(dynamic_partitions_store=instance)
    reference = marin.partitions.steps.reference
    partitioned = [name for name in reference.steps if marin.partitions.is_partitioned(name)]
    at_once = max(2, LOOK_UPS_PER_TICK // max(1, len(partitioned)))
    newest, turns, position, older = _chosen(keys, at_once, position)
    partitions, refused = _evaluated(marin.partitions, [*newest, *turns])
    seen = partitions.keys() | refused.keys()
    found = WatchedSteps(
        _in_order(marin, partitions),
        reference.graph,
        partitions,
        # Without those at the end for which the time did not suffice.
        [key for key in turns if key in seen],
        position,
        older,
        refused,
    )
    names = [marin.keys[reference.steps[name].output_path] for name in partitioned]
    return replace(
        found,
        unchecked=[
            AssetPartition(name, key) for key in keys if key not in partitions for name in names
        ],
    )


def _chosen(
    keys: Sequence[str], at_once: int, position: int
) -> tuple[Sequence[str], Sequence[str], int, int]:
    """The newest keys, those whose turn it is, and the position and number of all that take
    turns."""
    if len(keys) <= at_once:
        return keys, (), 0, 0
    newest = max(1, at_once // _NEWEST_SHARE)
    older = keys[:-newest]
    position %= len(older)
    turns = [*older[position:], *older[:position]][: at_once - newest]
    return keys[-newest:], turns, position, len(older)


def _evaluated(
    partitions: GraphPartitions, keys: Sequence[str]
) -> tuple[dict[str, Partition], dict[str, MarinDagsterError]]:
    """The graphs of these partitions as far as time allows, and the errors of those that are
    wrong."""
    began = time.monotonic()
    found: dict[str, Partition] = {}
    refused: dict[str, MarinDagsterError] = {}
    for key in keys:
        if found and time.monotonic() - began > _EVALUATING_S:
            break
        try:
            found[key] = partitions.steps.at(key)
        except MarinDagsterError as error:
            refused[key] = error
    if refused and not found:
        raise next(iter(refused.values()))
    return found, refused


def _in_order(marin: MarinGraph, partitions: Mapping[str, Partition]) -> list[WatchedStep]:
    """The shared steps that read no partition, the partitions, and the other shared steps."""
    assert marin.partitions is not None
    of_all = marin.partitions
    reference = of_all.steps.reference
    paths = {name: step.output_path for name, step in reference.steps.items()}
    below: set[str] = set()
    shared: list[str] = []
    for name in reference.steps:
        reads = set(of_all.dependencies[name])
        if any(of_all.is_partitioned(dep) for dep in reads) or not below.isdisjoint(reads):
            below.add(name)
        if not of_all.is_partitioned(name):
            shared.append(name)
    of_shared = {marin.keys[paths[name]]: reference.steps[name] for name in shared}

    def watch(names: Collection[str]) -> Iterator[WatchedStep]:
        for name in names:
            yield _watched(marin, paths[name], reference.steps[name], of_shared)

    found = [*watch([name for name in shared if name not in below])]
    for key, partition in partitions.items():
        for name, step in partition.steps.items():
            if of_all.is_partitioned(name):
                own, _ = partition.inputs(name)
                # What it reads of other partitions has no single step.
                inputs = {marin.keys[paths[dep]]: partition.steps[dep] for dep in own}
                found.append(_watched(marin, paths[name], step, inputs, key))
    return [*found, *watch([name for name in shared if name in below])]


def _watched(
    marin: MarinGraph,
    path: str,
    step: StepLike,
    steps: Mapping[dg.AssetKey, StepLike],
    partition: str | None = None,
) -> WatchedStep:
    inputs = {dep.asset_key: steps.get(dep.asset_key) for dep in marin.specs[path].deps}
    # Dagster compares every partition with the code version of the asset.
    of_asset = None if partition is None else code_version(marin.steps[path])
    return WatchedStep(step, marin.keys[path], inputs, partition, of_asset)


def _needed_in(partition: Partition, path: str, is_built: Callable[[str], bool]) -> StepLike | None:
    # A run of the partition builds none of the steps that belong to others.
    return partition.graph.needed_by(
        path, lambda reader: reader not in partition.paths or is_built(reader)
    )
