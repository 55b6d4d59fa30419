"""``GraphPartitions``: a graph of which each partition has its own steps, in Dagster's terms."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dagster as dg

from marin_dagster.assets.partition_mappings import (
    is_dynamic,
    listed,
    mapping_for,
    mapping_of_shared,
    sampled,
)
from marin_dagster.errors import GraphError
from marin_dagster.steps.partitions import PartitionedSteps
from marin_dagster.steps.text import summarize

PARTITION_TAG = "dagster/partition"
_RANGE_START_TAG = "dagster/asset_partition_range_start"
_RANGE_END_TAG = "dagster/asset_partition_range_end"


@dataclass(frozen=True, eq=False)
class GraphPartitions:
    """The steps of every partition, and the partitions in Dagster."""

    steps: PartitionedSteps
    definition: dg.PartitionsDefinition[Any]

    @classmethod
    def from_function(
        cls,
        steps_for: Callable[[str], Iterable[Any]],
        definition: dg.PartitionsDefinition[Any],
        *,
        examples: Sequence[str] | str = (),
        unpartitioned: Iterable[str] | str = (),
    ) -> "GraphPartitions":
        """Call the function for some partitions, and compare what it returns.

        Args:
            steps_for: returns the steps of one partition; of multi-partitions, it gets a
                ``MultiPartitionKey``.
            definition: the partitions.
            examples: keys of partitions to compare. Without them: the first, which gives the code
                versions, and four others.
            unpartitioned: names of steps that all partitions share.

        Raises:
            GraphError: no partition exists yet, or the graphs of two partitions do not fit
                together; see :meth:`PartitionedSteps.from_function`.
        """
        keys = (examples,) if isinstance(examples, str) else tuple(examples)
        shared = (unpartitioned,) if isinstance(unpartitioned, str) else unpartitioned
        if not keys:
            if is_dynamic(definition):
                raise GraphError(
                    "the partitions are dynamic, so the steps are unknown while the graph is "
                    "loaded. Give keys of partitions: example_partitions=['…']. They need not "
                    "exist."
                )
            known = listed(definition)
            middle = len(known) // 2
            keys = tuple(
                known[at] for at in (0, 1, middle, -2, -1) if -len(known) <= at < len(known)
            )

        def steps_of(key: str) -> Iterable[Any]:
            return steps_for(as_key(definition, key))

        return cls(PartitionedSteps.from_function(steps_of, keys, shared=shared), definition)

    def is_partitioned(self, name: str) -> bool:
        """Whether each partition has its own step of a name."""
        return name not in self.steps.shared

    @cached_property
    def dependencies(self) -> Mapping[str, Mapping[str, dg.PartitionMapping | None]]:
        """For each step, the names of the steps that it reads in any partition, each with a
        partition mapping, or None for Dagster's default.

        A step that reads earlier partitions of itself in a way that Dagster cannot show does not
        name itself.

        Raises:
            GraphError: a step reads a step that belongs to no partition.
        """
        reference = self.steps.reference
        keys = listed(self.definition) or self.steps.samples
        found: dict[str, dict[str, dg.PartitionMapping | None]] = {}
        for name in reference.steps:
            reads = self._reads(name, keys)
            found[name] = {}
            for dep, of_dep in reads.items():
                if not self.is_partitioned(dep):
                    found[name][dep] = None
                elif not self.is_partitioned(name):
                    found[name][dep] = mapping_of_shared(
                        keys, frozenset[str]().union(*of_dep.values())
                    )
                else:
                    mapping = mapping_for(self.definition, keys, of_dep, itself=dep == name)
                    if dep != name or mapping is not None:
                        found[name][dep] = mapping
        return found

    def _reads(self, name: str, keys: Sequence[str]) -> Mapping[str, Mapping[str, frozenset[str]]]:
        """Of each step that a step reads, the partitions, for some partitions of the reader."""
        reads_others = any(self.steps.at(key).inputs(name)[1] for key in self.steps.samples)
        chosen = self.steps.samples
        if reads_others and self.is_partitioned(name) and not is_dynamic(self.definition):
            chosen = tuple(dict.fromkeys([*chosen, *sampled(self.definition, keys)]))
        found: dict[str, dict[str, frozenset[str]]] = {}
        for key in chosen:
            own, _ = self.steps.at(key).inputs(name)
            others = self._read_of_others(key, name, keys)
            for dep in {*own, *others}:
                read = {*others.get(dep, ()), *([key] if dep in own else [])}
                found.setdefault(dep, {})[key] = frozenset(read)
        # In the order of the reader's own dependencies.
        order = self.steps.reference.steps
        return {dep: found[dep] for dep in order if dep in found}

    def _read_of_others(
        self, key: str, name: str, keys: Sequence[str]
    ) -> Mapping[str, Sequence[str]]:
        if is_dynamic(self.definition):
            # Which partitions exist is unknown, so what is read of others becomes all of them.
            others = self.steps.at(key).inputs(name)[1]
            return {dep: tuple(self.steps.samples) for dep in others}
        return self.steps.partitions_read(key, name, keys)


def as_key(definition: dg.PartitionsDefinition[Any], key: str) -> str:
    """A partition's key as Dagster gives it to users: a ``MultiPartitionKey`` of multi-partitions.

    Raises:
        GraphError: it is not the key of a multi-partition.
    """
    if not isinstance(definition, dg.MultiPartitionsDefinition) or isinstance(
        key, dg.MultiPartitionKey
    ):
        return key
    try:
        return definition.get_partition_key_from_str(key)
    except Exception as error:  # Dagster's check errors are private
        names = "|".join(sorted(definition.partition_dimension_names))
        raise GraphError(
            f"{key!r} is not the key of a partition: write it as {names!r}."
        ) from error


def run_partitions(
    run: dg.DagsterRun,
    definition: dg.PartitionsDefinition[Any],
    instance: dg.DagsterInstance,
) -> tuple[str, ...]:
    """The partitions that a run's tags name; none of a run without partitions.

    Args:
        run: the run.
        definition: the partitions of its assets.
        instance: knows the keys of dynamic partitions.

    Raises:
        GraphError: they name a partition that does not exist.
    """
    if isinstance(definition, dg.MultiPartitionsDefinition):
        names = definition.partition_dimension_names
        parts = {name: run.tags.get(f"{PARTITION_TAG}/{name}") for name in names}
        if all(parts.values()):
            return (dg.MultiPartitionKey({name: str(part) for name, part in parts.items()}),)
    if (key := run.tags.get(PARTITION_TAG)) is not None:
        return (as_key(definition, key),)
    first, last = run.tags.get(_RANGE_START_TAG), run.tags.get(_RANGE_END_TAG)
    if first is None or last is None:
        return ()
    if first == last:
        return (as_key(definition, first),)
    keys = definition.get_partition_keys(dynamic_partitions_store=instance)
    chosen = _between(definition, keys, first, last)
    if first not in chosen or last not in chosen:
        raise GraphError(
            f"the run is for partitions {first!r} to {last!r}, which are not both partitions of "
            f"its assets ({summarize(keys)})."
        )
    return chosen


def planned_partitions(
    run: dg.DagsterRun, partitions: GraphPartitions | None, instance: dg.DagsterInstance
) -> tuple[str, ...]:
    """As :func:`run_partitions`, of any run: none where its tags name other assets' partitions, or
    partitions that are gone."""
    if partitions is not None:
        with suppress(GraphError):
            return run_partitions(run, partitions.definition, instance)
    return ()


def _between(
    definition: dg.PartitionsDefinition[Any], keys: Sequence[str], first: str, last: str
) -> tuple[str, ...]:
    """The keys of a range; of multi-partitions, those within the range in each dimension."""
    if not isinstance(definition, dg.MultiPartitionsDefinition):
        if first not in keys or last not in keys:
            return ()
        return tuple(keys[keys.index(first) : keys.index(last) + 1])
    parse = definition.get_partition_key_from_str
    parts = {str(key): parse(str(key)).keys_by_dimension for key in keys}
    if first not in parts or last not in parts:
        return ()
    chosen = set(parts)
    for name in definition.partition_dimension_names:
        of_dimension = list(dict.fromkeys(part[name] for part in parts.values()))
        start, end = (of_dimension.index(parts[key][name]) for key in (first, last))
        within = set(of_dimension[start : end + 1])
        chosen = {key for key in chosen if parts[key][name] in within}
    return tuple(parse(str(key)) for key in keys if str(key) in chosen)
