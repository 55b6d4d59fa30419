"""Which steps a tick of a schedule decides about, and of which partitions."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any

import dagster as dg

from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.events.asset_records import AssetPartition
from marin_dagster.steps import StepGraph
from marin_dagster.steps.partitions import Partition
from marin_dagster.steps.protocol import is_external


@dataclass(frozen=True, eq=False)
class DueSteps:
    """Steps of one graph that one run builds."""

    graph: StepGraph
    assets: Mapping[str, AssetPartition]
    """The asset, or its partition, of each output path that the run may build; inputs first."""
    partition: str | None = None
    """The partition of the run."""
    others: frozenset[str] = frozenset()
    """Output paths of the graph that belong to other partitions."""


def due_partitions(
    definition: dg.PartitionsDefinition[Any],
    now: datetime | None,
    look_back: int,
    instance: dg.DagsterInstance | None,
) -> Sequence[str]:
    """The partitions that a tick looks at, in order.

    Args:
        definition: the partitions.
        now: the time of the tick; None for the present.
        look_back: how many partitions before the last that has ended, of time windows.
        instance: knows the keys of dynamic partitions.
    """
    if isinstance(definition, dg.MultiPartitionsDefinition):
        dimensions = [
            [
                (part.name, key)
                for key in due_partitions(part.partitions_def, now, look_back, instance)
            ]
            for part in definition.partitions_defs
        ]
        return [dg.MultiPartitionKey(dict(parts)) for parts in product(*dimensions)]
    keys = definition.get_partition_keys(current_time=now, dynamic_partitions_store=instance)
    is_time = isinstance(definition, dg.TimeWindowPartitionsDefinition)
    return keys[-(look_back + 1) :] if is_time else keys


def due_steps(
    marin: MarinGraph, partitions: Iterable[str], of_job: Collection[dg.AssetKey]
) -> Iterable[DueSteps]:
    """The steps of each partition, and those that only a run without a partition builds.

    Steps that all partitions share are built with the first partition that needs them. Of the
    others, such as a leaderboard over all partitions, none needs one.

    Args:
        marin: the graph.
        partitions: the partitions that are due; none of a graph without partitions.
        of_job: the assets that the job builds.

    Raises:
        GraphError: the steps of a partition do not fit those of others.
    """
    if marin.partitions is None:
        assets = {path: AssetPartition(key) for path, key in marin.keys.items() if key in of_job}
        yield DueSteps(marin.graph, assets)
        return
    steps = marin.partitions.steps
    keys = {step.name: marin.keys[path] for path, step in marin.steps.items()}
    partitioned = {name for name in keys if marin.partitions.is_partitioned(name)}
    needed = _with_inputs(steps.reference, partitioned)
    for key in partitions:
        yield _due(steps.at(key), needed, partitioned, keys, of_job, key)
    rest = _with_inputs(steps.reference, keys.keys() - needed) - partitioned
    if rest:
        yield _due(steps.reference, rest, partitioned, keys, of_job, None)


def _due(
    partition: Partition,
    names: Collection[str],
    partitioned: Collection[str],
    keys: Mapping[str, dg.AssetKey],
    of_job: Collection[dg.AssetKey],
    key: str | None,
) -> DueSteps:
    assets = {
        step.output_path: AssetPartition(keys[name], key if name in partitioned else None)
        for name, step in partition.steps.items()
        if name in names and keys[name] in of_job and not is_external(step)
    }
    others = frozenset(partition.graph.steps.keys() - partition.paths)
    return DueSteps(partition.graph, assets, key, others)


def _with_inputs(partition: Partition, names: Iterable[str]) -> set[str]:
    """Names of steps, and of the steps of the same partition that they need."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(partition.inputs(name)[0])
    return found
