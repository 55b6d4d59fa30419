"""What Dagster is told of an output, by runs and by the sensor alike."""

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
from marin_dagster.events.asset_records import LastEvent, last_materialization
from marin_dagster.events.bounded_json import bounded_json
from marin_dagster.events.metadata_keys import (
    BUILT_AT,
    BUILT_BY,
    CACHE,
    COMMIT,
    DURATION_S,
    FINISHED_AT,
    LAUNCHED_AT,
    NUMBERS_LEFT_OUT,
    OUTPUT_PATH,
    RESULT,
)
from marin_dagster.steps import StepLike
from marin_dagster.steps.attributes import leaves_in
from marin_dagster.steps.protocol import address, code_version, data_version

CODE_VERSION_TAG = "dagster/code_version"
SERVED = "Nothing ran: the output was finished."
"""The reason of a materialization or observation of what the cache had."""

FAILED_AGAIN = (
    "It is not finished any more: it was begun again, and that attempt failed or was cut off."
)

MAX_NUMBERS = 100
"""Of a result: each is an entry of its own in every event that tells of the output."""


def input_version_tag(key: dg.AssetKey) -> str:
    """The tag of a materialization that names the version of an asset that it was made from."""
    return f"dagster/input_data_version/{key.to_user_string()}"


def recorded_version(step: StepLike, drift: Drift | None) -> str:
    """The data version of the output that lies there, whichever recipe built it."""
    return sendable(drift.recorded) if drift else data_version(step)


def recorded_code_version(step: StepLike, drift: Drift | None) -> str | None:
    """The code version of the recipe that built it; None for what is built every time."""
    if drift is None:
        return code_version(step)
    recorded = sendable(drift.recorded)
    return code_version(step, recorded) or recorded


def output_metadata(
    folder: OutputDir, record: ArtifactRecord | None, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Metadata of a materialization: what was returned, the path, facts."""
    result = (record.result if record else None) or {}
    metadata = {
        # First, so that a number cannot hide one of our own facts.
        **_first_numbers(result),
        **_whole(result),
        OUTPUT_PATH: dg.MetadataValue.path(folder.url),
        **facts,
    }
    return {
        sendable(name): sendable(value) if isinstance(value, str) else value
        for name, value in metadata.items()
    }


def cut_off(key: dg.AssetKey, step: StepLike) -> dg.AssetObservation:
    """That an output was finished, and an attempt to build it again has left it unfinished."""
    return dg.AssetObservation(
        key,
        description=f"{address(step)}: {FAILED_AGAIN}",
        metadata={CACHE: "failed", OUTPUT_PATH: dg.MetadataValue.path(step.output_path)},
    )


def report_cut_off(context: dg.AssetExecutionContext | dg.OutputContext, attempt: Attempt) -> None:
    """Record on the asset that an attempt has left an output unfinished that was finished before;
    nothing for any other attempt."""
    if attempt.cut_off:
        context.log_event(cut_off(context.asset_key, attempt.step))


def finished_at(folder: OutputDir) -> dict[str, Any]:
    """When the output of a ``dev`` version was finished; nothing on a store without times."""
    moment = folder.modified(STATUS_FILE)
    return {} if moment is None else {FINISHED_AT: dg.MetadataValue.timestamp(moment)}


def sendable(text: str) -> str:
    """Text that a record or a lock of somebody else's holds, as the webserver can send it.

    JSON can hold halves of surrogate pairs, and UTF-8 cannot: each becomes a ``?``.
    """
    return text.encode("utf-8", "replace").decode()


def hit_facts(hit: Hit, record: ArtifactRecord | None) -> dict[str, Any]:
    """That an output came from the cache, and who built it, when and from which commit."""
    # No duration: a plot of how long builds take has no place for what took none.
    return {CACHE: "hit", **_built_by(hit, record)}


def record_of(hit: Hit, log: logging.Logger) -> ArtifactRecord | None:
    """The output's record, or a warning when it cannot be read."""
    try:
        return hit.record
    except RecordError as error:
        # The output is finished and served, as Marin does; only what is told of it is lost.
        log.warning(str(error))
        return None


def built_in_s(entry: LastEvent | None) -> float | None:
    """Seconds that the build took which the asset's last materialization tells of."""
    recorded = last_materialization(entry)
    metadata = recorded.metadata if recorded else {}
    how, seconds = metadata.get(CACHE), metadata.get(DURATION_S)
    if how is None or how.value != "built" or not isinstance(seconds, dg.FloatMetadataValue):
        return None
    return seconds.value


def last_output_path(entry: LastEvent | None) -> str | None:
    """Where the output lies that the asset's last materialization tells of."""
    recorded = last_materialization(entry)
    path = recorded.metadata.get(OUTPUT_PATH) if recorded else None
    return str(path.value) if path else None


def removed(needed: bool) -> str:
    """What became of an output that Dagster knows and that is gone, and what to do.

    Args:
        needed: whether a run of everything would build it again.
    """
    said = "The output was finished, and it is gone."
    if needed:
        return f"{said} A run that needs it builds it again."
    return (
        f"{said} Nothing needs it now, for every step that reads it is finished; materialize it "
        "alone to rebuild it."
    )


def _built_by(hit: Hit, record: ArtifactRecord | None) -> dict[str, Any]:
    provenance = record.provenance if record else None
    if provenance is None:
        return {BUILT_BY: "unknown (the output has no provenance)"}
    metadata: dict[str, Any] = {BUILT_BY: provenance.built_by or "unknown"}
    # The record's own time is that of the launch, the same for every step of a run.
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
