"""``ChosenStep``: the step of an op; where there are partitions, the run's partition chooses it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import dagster as dg

from marin_dagster.assets.partitions import GraphPartitions, run_partitions
from marin_dagster.errors import StepError
from marin_dagster.events.asset_records import last_events
from marin_dagster.steps import StepGraph, StepLike


@dataclass(frozen=True, eq=False)
class ChosenStep:
    """The step of an op and its graph."""

    step: StepLike
    graph: StepGraph
    io_manager_key: str
    input_steps: Mapping[str, StepLike]
    """The step of each of the op's inputs that is the output of one, without partitioned assets."""
    partitioned_inputs: Mapping[str, str] = field(default_factory=dict)
    """The step name of each of the op's inputs that is a partitioned asset."""
    partitions: GraphPartitions | None = None
    """Chooses the step by the run's partition; ``step`` and ``graph`` are then of one partition."""
    run_partition: str | None = None
    """The partition of the run, whose graph it is."""

    @property
    def partition(self) -> str | None:
        """The partition whose step it is; None for a step without partitions."""
        if self.partitions is None or not self.partitions.is_partitioned(self.step.name):
            return None
        return self.run_partition

    def is_of_another_partition(self, path: str) -> bool:
        """Whether an output path of the graph belongs to a partition that is not the run's."""
        if self.partitions is None:
            return False
        key = self.run_partition or self.partitions.steps.reference.key
        return path not in self.partitions.steps.at(key).paths

    def at(self, key: str | None) -> Self:
        """The op with the step of a partition of the run; unchanged in a graph without partitions.

        Raises:
            GraphError: the partition's steps do not fit those of the others.
        """
        if self.partitions is None or key is None:
            return self
        partition = self.partitions.steps.at(key)
        name = self.step.name
        return replace(
            self,
            step=partition.steps[name],
            graph=partition.graph,
            input_steps={of: partition.steps[dep.name] for of, dep in self.input_steps.items()},
            run_partition=key,
        )

    def run_partitions(
        self, run: dg.DagsterRun, instance: dg.DagsterInstance
    ) -> tuple[str | None, ...]:
        """The partitions that a run builds; None alone for a step without partitions.

        Raises:
            StepError: each partition has its own step, and the run names no partition.
        """
        if self.partitions is None:
            return (None,)
        keys = run_partitions(run, self.partitions.definition, instance)
        if not keys and self.partitions.is_partitioned(self.step.name):
            raise StepError(
                f"step {self.step.name!r} is partitioned, and the run names no partition. Choose "
                "one where you launch the run."
            )
        return keys or (None,)

    def at_checked(
        self, run: dg.DagsterRun, instance: dg.DagsterInstance, key: dg.AssetKey
    ) -> Self:
        """The op for a run of the check alone: of the run's partition, or of the one that was
        materialized last."""
        if self.partitions is None:
            return self
        keys = run_partitions(run, self.partitions.definition, instance)
        if not keys and self.partitions.is_partitioned(self.step.name):
            entry = last_events(instance, [key]).get(key)
            last = entry.record.partition_key if entry and entry.record else None
            keys = (last or self.partitions.steps.reference.key,)
        return self.at(keys[0] if keys else None)

    def of_run(self, context: dg.AssetExecutionContext) -> Self:
        """The op with the step of the run's partition."""
        if context.selected_asset_keys:
            first, *_ = self.run_partitions(context.run, context.instance)
            return self.at(first)
        (check,) = context.selected_asset_check_keys
        return self.at_checked(context.run, context.instance, check.asset_key)
