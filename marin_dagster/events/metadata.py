"""Metadata and versions of an output, the same in the events of runs and of the sensor."""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import dagster as dg

from marin_dagster.cache import ArtifactRecord, Attempt, Drift, Hit, OutputDir
from marin_dagster.cache.record import RECORD_FILE
from marin_dagster.cache.status import STATUS_FILE
from marin_dagster.errors import RecordError
from marin_dagster.events.asset_records import AssetPartition, LastEvent, last_materialization
from marin_dagster.events.bounded_json import bounded_json
from marin_dagster.events.metadata_keys import (
    BUILT_AT,
    BUILT_BY,
    CACHE,
    COMMIT,
    DRIFT,
    DURATION_S,
    FINISHED_AT,
    LAUNCHED_AT,
    NUMBERS_LEFT_OUT,
    OUTPUT_PATH,
    REASON,
    RESULT,
)
from marin_dagster.steps import StepLike
from marin_dagster.steps.attributes import leaves_in
from marin_dagster.steps.protocol import address, code_version, data_version
from marin_dagster.steps.text import shorten_middle

CODE_VERSION_TAG = "dagster/code_version"
NO_EVENT = "NULL"
"""The pointer to an input's event where it is unknown."""
SERVED = "Nothing ran: the output was finished."
"""The reason in the event of a cache hit."""

FAILED_AGAIN = (
    "It is not finished any more: it was begun again, and that attempt failed or was cut off."
)

MAX_NUMBERS = 100
"""Numbers of a result that become metadata: each is a separate entry in every event of the
output."""


def input_version_tag(key: dg.AssetKey) -> str:
    """The tag of a materialization that holds the version of one of its inputs."""
    return f"dagster/input_data_version/{key.to_user_string()}"


def input_pointer_tag(key: dg.AssetKey) -> str:
    """The tag of a materialization that holds the event of one of its inputs."""
    return f"dagster/input_event_pointer/{key.to_user_string()}"


def recorded_version(step: StepLike, drift: Drift | None) -> str:
    """The data version of the output in the store, whichever recipe built it."""
    return sendable(drift.recorded) if drift else data_version(step)


def recorded_code_version(step: StepLike, drift: Drift | None) -> str | None:
    """The code version of the recipe that built it; None for a step that is built every time."""
    if drift is None:
        return code_version(step)
    recorded = sendable(drift.recorded)
    return code_version(step, recorded) or recorded


def output_metadata(
    folder: OutputDir, record: ArtifactRecord | None, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Metadata of a materialization: the result, the output path, and ``facts``."""
    result = (record.result if record else None) or {}
    metadata = {
        # First, so that a number of the result cannot replace one of our facts.
        **_first_numbers(result),
        **_whole(result),
        OUTPUT_PATH: dg.MetadataValue.path(folder.url),
        **facts,
    }
    return {
        sendable(name): sendable(value) if isinstance(value, str) else value
        for name, value in metadata.items()
    }


def cut_off(asset: AssetPartition, step: StepLike) -> dg.AssetObservation:
    """The event of a finished output that an attempt to rebuild it has left unfinished."""
    return dg.AssetObservation(
        asset.key,
        partition=asset.partition,
        description=f"{address(step)}: {FAILED_AGAIN}",
        metadata={CACHE: "failed", OUTPUT_PATH: dg.MetadataValue.path(step.output_path)},
    )


def served_observation(
    asset: AssetPartition, step: StepLike, drift: Drift | None
) -> dg.AssetObservation:
    """The event of a finished output that the instance has recorded."""
    return dg.AssetObservation(
        asset.key,
        partition=asset.partition,
        metadata={
            OUTPUT_PATH: dg.MetadataValue.path(step.output_path),
            CACHE: "hit",
            REASON: SERVED,
            **({DRIFT: sendable(drift.message)} if drift else {}),
        },
    )


def report_cut_off(
    context: dg.AssetExecutionContext | dg.OutputContext, asset: AssetPartition, attempt: Attempt
) -> None:
    """Record on the asset that this attempt left a finished output unfinished, if it did."""
    if attempt.cut_off:
        context.log_event(cut_off(asset, attempt.step))


def finished_at(folder: OutputDir) -> dict[str, Any]:
    """When the output of a ``dev`` version was finished; empty for a store without times."""
    moment = folder.modified(STATUS_FILE)
    return {} if moment is None else {FINISHED_AT: dg.MetadataValue.timestamp(moment)}


def sendable(text: str) -> str:
    """Text from a record or lock that another program wrote, so that the webserver can send it.

    JSON can hold halves of surrogate pairs; UTF-8 cannot, so each becomes a ``?``.
    """
    return text.encode("utf-8", "replace").decode()


def hit_facts(hit: Hit, record: ArtifactRecord | None) -> dict[str, Any]:
    """Metadata of a cache hit: who built the output, when and from which commit."""
    # No duration: a hit would distort the plot of build times.
    return {CACHE: "hit", REASON: SERVED, **_built_by(hit, record)}


def record_of(hit: Hit, log: logging.Logger) -> ArtifactRecord | None:
    """The output's record, or a warning when it cannot be read."""
    try:
        return hit.record
    except RecordError as error:
        # As in Marin, the output is finished and served; only its metadata is missing.
        log.warning(str(error))
        return None


def built_in_s(entry: LastEvent | None) -> float | None:
    """Seconds of the build that the asset's last materialization recorded; None for a hit."""
    recorded = last_materialization(entry)
    metadata = recorded.metadata if recorded else {}
    how, seconds = metadata.get(CACHE), metadata.get(DURATION_S)
    if how is None or how.value != "built" or not isinstance(seconds, dg.FloatMetadataValue):
        return None
    return seconds.value


def last_output_path(entry: LastEvent | None) -> str | None:
    """The output path in the asset's last materialization."""
    recorded = last_materialization(entry)
    path = recorded.metadata.get(OUTPUT_PATH) if recorded else None
    return str(path.value) if path else None


def removed(step: StepLike, needed_by: StepLike | None) -> str:
    """The message for an output that Dagster has recorded and that is gone.

    Args:
        step: its step.
        needed_by: see :meth:`StepGraph.needed_by`.
    """
    gone = "The output was finished, and it is gone."
    if needed_by is step:
        return f"{gone} Materialize it to build it again."
    if needed_by is not None:
        name = shorten_middle(address(needed_by))
        return f"{gone} {name} needs it and is not finished: a run of {name} builds both."
    return (
        f"{gone} Nothing needs it now, for every step that reads it is finished; materialize it "
        "alone to rebuild it."
    )


def _built_by(hit: Hit, record: ArtifactRecord | None) -> dict[str, Any]:
    provenance = record.provenance if record else None
    if provenance is None:
        return {BUILT_BY: "unknown (the output has no provenance)"}
    metadata: dict[str, Any] = {BUILT_BY: provenance.built_by or "unknown"}
    # The time in the record is that of the launch, the same for every step of a run.
    if (finished := hit.folder.modified(RECORD_FILE)) is not None:
        metadata[BUILT_AT] = dg.MetadataValue.timestamp(finished)
    elif provenance.created_at:
        metadata[LAUNCHED_AT] = provenance.created_at
    if provenance.base_commit:
        changed = " with uncommitted changes" if provenance.dirty else ""
        metadata[COMMIT] = provenance.base_commit + changed
    return metadata


def _whole(result: Mapping[str, Any]) -> dict[str, Any]:
    if all(_is_number(value) for _, value in leaves_in(result)):
        return {}
    # NaN and infinity as text, and no halves of surrogate pairs.
    plain = json.loads(sendable(json.dumps(result, ensure_ascii=False)), parse_constant=str)
    return {RESULT: dg.MetadataValue.json(bounded_json(plain))}


def _first_numbers(result: Mapping[str, Any]) -> dict[str, Any]:
    numbers = dict(_numbers(result))
    left_out = len(numbers) - MAX_NUMBERS
    if left_out <= 0:
        return numbers
    return {**dict(islice(numbers.items(), MAX_NUMBERS)), NUMBERS_LEFT_OUT: left_out}


def _numbers(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, value in leaves_in(result):
        if _is_number(value):
            # Neither JSON nor the plots know NaN and infinity.
            unfit = isinstance(value, float) and not math.isfinite(value)
            yield path, str(value) if unfit else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
