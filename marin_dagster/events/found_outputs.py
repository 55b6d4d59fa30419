"""Materializations of outputs that were found finished in the store, outside of a run."""

import logging
from collections.abc import Mapping
from typing import Any

import dagster as dg

from marin_dagster.cache import ArtifactRecord, Drift, Hit, LookUp, OutputDir
from marin_dagster.events.asset_records import DATA_VERSION_TAG, AssetPartition
from marin_dagster.events.metadata import (
    CODE_VERSION_TAG,
    NO_EVENT,
    hit_facts,
    input_pointer_tag,
    input_version_tag,
    output_metadata,
    record_of,
    recorded_code_version,
    recorded_version,
    sendable,
)
from marin_dagster.events.metadata_keys import DRIFT
from marin_dagster.steps import StepLike
from marin_dagster.steps.protocol import address, is_external, is_mutable

ASSUMED_VERSION = "INITIAL"
"""The data version that Dagster assumes for an asset without records."""


def found_metadata(step: StepLike, drift: Drift | None, log: logging.Logger) -> dict[str, Any]:
    """Metadata of a found output, read from its record.

    Without sizes, unlike in a run: listing one large output could take long.
    """
    hit = Hit(step, OutputDir.at(step.output_path), drift)
    record: ArtifactRecord | None = record_of(hit, log)
    facts = hit_facts(hit, record)
    if drift is not None:
        facts[DRIFT] = sendable(drift.message)
    return output_metadata(hit.folder, record, facts)


def found_output(
    asset: AssetPartition,
    step: StepLike,
    *,
    metadata: Mapping[str, Any],
    inputs: Mapping[dg.AssetKey, StepLike | None],
    found: Mapping[str, LookUp],
    versions: Mapping[dg.AssetKey, str | None],
    version: str | None = None,
    code_version: str | None = None,
) -> dg.AssetMaterialization:
    """The materialization of a found output, with the versions that a run records for a hit.

    Args:
        asset: the asset, or its partition.
        step: its step.
        metadata: see :func:`found_metadata`.
        inputs: the assets that it reads, each with its step if it is one's output.
        found: look-ups of the step and of its inputs, by output path.
        versions: the last data versions of the inputs, as the instance knows them.
        version: the output's data version, if not the step's.
        code_version: the asset's code version, if it has partitions.
    """
    drift = found[step.output_path].drift
    built_by = recorded_version(step, drift)
    if drift is not None or code_version is None:
        code_version = recorded_code_version(step, drift)
    tags = {
        DATA_VERSION_TAG: version or built_by,
        CODE_VERSION_TAG: code_version or built_by,
        "dagster/data_version_is_user_provided": "true",
    }
    if isinstance(asset.partition, dg.MultiPartitionKey):
        tags |= {
            f"dagster/partition/{name}": part
            for name, part in asset.partition.keys_by_dimension.items()
        }
    for input_key, dep in inputs.items():
        # It read the asset, but which of the asset's events is unknown.
        tags[input_pointer_tag(input_key)] = NO_EVENT
        if dep is None or is_external(dep) or is_mutable(dep):
            # The version that it read is unknown; Dagster assumes the latest.
            tags[input_version_tag(input_key)] = versions.get(input_key) or ASSUMED_VERSION
        else:
            tags[input_version_tag(input_key)] = recorded_version(dep, found[dep.output_path].drift)
    return dg.AssetMaterialization(
        asset.key,
        partition=asset.partition,
        description=f"{address(step)} was found finished in the cache.",
        metadata=metadata,
        tags=tags,
    )
