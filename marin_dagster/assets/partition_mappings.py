"""Dagster's partition mappings, derived from which partitions a step reads of which other step."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg

from marin_dagster._compat import without_beta_warnings

_MAPPED = 500
"""Partitions of a static definition whose inputs are listed one by one; more become one mapping to
all partitions."""

Reads = Mapping[str, frozenset[str]]
"""For keys of partitions of a step, the keys of another step's partitions that it reads."""


def mapping_for(
    definition: dg.PartitionsDefinition[Any],
    keys: Sequence[str],
    reads: Reads,
    *,
    itself: bool,
) -> dg.PartitionMapping | None:
    """How the partitions of a step read those of a step with the same partitions.

    The mapping is exact where Dagster has one, and otherwise covers more than is read: runs and
    decisions follow the graphs, Dagster's lineage and automation follow the mapping.

    Args:
        definition: the partitions of both.
        keys: all partitions, in order.
        reads: what some partitions read; with ``keys`` whole, for up to 500 of them.
        itself: whether both are one step, which reads its own earlier partitions.

    Returns:
        None where Dagster's default, each partition reads its own, is right, and where a step
        reads itself in a way for which Dagster has no mapping.
    """
    if all(read == {key} for key, read in reads.items()):
        return None
    with without_beta_warnings():
        if isinstance(definition, dg.MultiPartitionsDefinition):
            found = _multi(definition, reads)
        else:
            found = _of_one_dimension(definition, keys, reads)
    return None if itself and not _looks_back(found) else found


def mapping_of_shared(keys: Sequence[str], read: Iterable[str]) -> dg.PartitionMapping:
    """How a step without partitions reads partitions of another.

    Args:
        keys: all partitions of the other.
        read: those that it reads.
    """
    chosen = set(read)
    if chosen.issuperset(keys):
        return dg.AllPartitionMapping()
    return dg.SpecificPartitionsPartitionMapping(sorted(chosen))


def _of_one_dimension(
    definition: dg.PartitionsDefinition[Any], keys: Sequence[str], reads: Reads
) -> dg.PartitionMapping:
    if isinstance(definition, dg.TimeWindowPartitionsDefinition):
        at = {key: index for index, key in enumerate(keys)}
        offsets = {
            at[other] - at[key]
            for key, read in reads.items()
            for other in read
            if key in at and other in at
        }
        return dg.TimeWindowPartitionMapping(
            start_offset=min(offsets, default=0),
            end_offset=max(offsets, default=0),
            allow_nonexistent_upstream_partitions=True,
        )
    sets = set(reads.values())
    if len(sets) == 1:
        (read,) = sets
        return mapping_of_shared(keys, read)
    if not isinstance(definition, dg.StaticPartitionsDefinition) or not reads.keys() >= set(keys):
        return dg.AllPartitionMapping()
    readers: dict[str, set[str]] = {}
    for key, read in reads.items():
        for other in read:
            readers.setdefault(other, set()).add(key)
    return dg.StaticPartitionMapping(readers)


def _multi(definition: dg.MultiPartitionsDefinition, reads: Reads) -> dg.PartitionMapping:
    """A mapping for each dimension, where what is read is all combinations of its parts."""
    parse = definition.get_partition_key_from_str
    dimensions: dict[str, dg.DimensionPartitionMapping] = {}
    projected: dict[str, dict[str, dict[str, frozenset[str]]]] = {}
    for key, read in reads.items():
        others = [parse(other).keys_by_dimension for other in read]
        count = 1
        for name, own in parse(key).keys_by_dimension.items():
            parts = frozenset(other[name] for other in others)
            count *= len(parts)
            known = projected.setdefault(name, {}).setdefault(own, {})
            known[key] = parts
        if count != len(read):
            return dg.AllPartitionMapping()
    for dimension in definition.partitions_defs:
        name, inner = dimension.name, dimension.partitions_def
        of_dimension: dict[str, frozenset[str]] = {}
        for own, found in projected.get(name, {}).items():
            if len(set(found.values())) > 1:
                return dg.AllPartitionMapping()
            of_dimension[own] = next(iter(found.values()))
        mapping: dg.PartitionMapping = dg.IdentityPartitionMapping()
        if any(read != {own} for own, read in of_dimension.items()):
            mapping = _of_one_dimension(inner, listed(inner), of_dimension)
        dimensions[name] = dg.DimensionPartitionMapping(name, mapping)
    return dg.MultiPartitionMapping(dimensions)


def listed(definition: dg.PartitionsDefinition[Any]) -> Sequence[str]:
    """The keys of a definition's partitions; none of one whose keys only an instance knows."""
    return () if is_dynamic(definition) else definition.get_partition_keys()


def is_dynamic(definition: dg.PartitionsDefinition[Any]) -> bool:
    """Whether only an instance knows the partitions."""
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return any(is_dynamic(dimension.partitions_def) for dimension in definition.partitions_defs)
    return isinstance(definition, dg.DynamicPartitionsDefinition)


def sampled(definition: dg.PartitionsDefinition[Any], keys: Sequence[str]) -> Sequence[str]:
    """The partitions whose inputs are looked at for a mapping: all of up to 500, or the ends."""
    if len(keys) <= _MAPPED and not isinstance(definition, dg.TimeWindowPartitionsDefinition):
        return keys
    return tuple(dict.fromkeys([*keys[:3], *keys[-3:]]))


def _looks_back(mapping: dg.PartitionMapping) -> bool:
    """Whether Dagster lets an asset read itself with the mapping."""
    if isinstance(mapping, dg.MultiPartitionMapping):
        return any(
            _looks_back(dimension.partition_mapping)
            for dimension in mapping.downstream_mappings_by_upstream_dimension.values()
        )
    return (
        isinstance(mapping, dg.TimeWindowPartitionMapping)
        and mapping.start_offset < 0
        and mapping.end_offset < 0
    )
