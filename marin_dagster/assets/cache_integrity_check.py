"""Evaluates the asset check ``cache_integrity``: do the files beside an output match its step?"""

from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from marin_dagster._compat import AssetCheckEvaluationTargetMaterializationData
from marin_dagster.cache import CacheState, Status, StepCache
from marin_dagster.cache.record_check import check_integrity
from marin_dagster.errors import MarinDagsterError
from marin_dagster.events.asset_records import AssetPartition, LastEvent
from marin_dagster.events.metadata import FAILED_AGAIN, last_output_path, removed, sendable
from marin_dagster.events.metadata_keys import DRIFT, FAULTS, OUTPUT_PATH
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.text import summarize

CHECK_NAME = "cache_integrity"


def check_spec(key: dg.AssetKey) -> dg.AssetCheckSpec:
    """The check of an asset.

    Without a description: ``dg list defs`` would repeat it for each asset, and each evaluation has
    its own.
    """
    return dg.AssetCheckSpec(CHECK_NAME, asset=key)


def evaluate(
    step: StepLike, graph: StepGraph, asset: AssetPartition, entry: LastEvent | None
) -> dg.AssetCheckEvaluation:
    """Compare the files beside a step's output with the step. Reads only.

    Args:
        step: a step that a run can build.
        graph: its graph, which decides whether a run needs the output.
        asset: the asset, by its key in this job, or its partition.
        entry: what the instance last recorded of the asset; None for an output that this run has
            just recorded.

    Raises:
        StoreError: the status could not be read.
    """
    look = check_integrity(step)
    faults, passed, severity = look.faults, False, dg.AssetCheckSeverity.ERROR
    if look.status is not Status.SUCCESS:
        if look.status is Status.RUNNING or last_output_path(entry) != step.output_path:
            status = look.status or "nothing there"
            text = f"Nothing is finished, so there is nothing to check (status: {status})."
            passed = True
        elif look.status is None:
            # Not an error: an output may be removed on purpose, and a run rebuilds what it needs.
            needed_by = graph.needed_by(step.output_path, _is_built(graph))
            text, passed = removed(step, needed_by), needed_by is None
            severity = dg.AssetCheckSeverity.WARN
        else:
            text = FAILED_AGAIN
            faults = (text,)
    elif faults:
        text = " ".join(faults)
    elif look.drift:
        text, severity = look.drift.message, dg.AssetCheckSeverity.WARN
    else:
        text, passed = "The record agrees with the step.", True
    metadata: dict[str, Any] = {OUTPUT_PATH: dg.MetadataValue.path(step.output_path)}
    if faults:
        metadata[FAULTS] = sendable(" ".join(faults))
    if look.drift:
        metadata[DRIFT] = sendable(look.drift.message)
    return dg.AssetCheckEvaluation(
        asset_key=asset.key,
        check_name=CHECK_NAME,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN if passed else severity,
        metadata=metadata,
        description=sendable(_described(text, asset)),
        target_materialization_data=_target(entry),
        blocking=False,
    )


def unknown(asset: AssetPartition, error: MarinDagsterError) -> dg.AssetCheckEvaluation:
    """The evaluation of an output that was served or built and can no longer be read."""
    return dg.AssetCheckEvaluation(
        asset_key=asset.key,
        check_name=CHECK_NAME,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description=sendable(_described(f"The output could not be checked: {error}", asset)),
        blocking=False,
    )


def combined(evaluations: Sequence[dg.AssetCheckEvaluation]) -> dg.AssetCheckEvaluation:
    """One evaluation for several partitions of an asset: failed when one of them has."""
    failed = [evaluation for evaluation in evaluations if not evaluation.passed]
    if len(evaluations) == 1 or not failed:
        of_all = f"The records of {len(evaluations)} partitions agree with their steps."
        text = of_all if len(evaluations) > 1 else evaluations[0].description
        return _with_text(evaluations[0], text)
    texts = [str(evaluation.description) for evaluation in failed]
    errors = [one for one in failed if one.severity is dg.AssetCheckSeverity.ERROR]
    text = f"{len(failed)} of {len(evaluations)} partitions: {summarize(texts, ' ')}"
    return _with_text((errors or failed)[0], text)


def _with_text(evaluation: dg.AssetCheckEvaluation, text: str | None) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=evaluation.asset_key,
        check_name=evaluation.check_name,
        passed=evaluation.passed,
        severity=evaluation.severity,
        metadata=evaluation.metadata,
        description=text,
        blocking=False,
    )


def _described(text: str, asset: AssetPartition) -> str:
    return text if asset.partition is None else f"Partition {asset.partition}: {text}"


def _is_built(graph: StepGraph) -> Callable[[str], bool]:
    cache = StepCache()
    return lambda path: cache.look_up(graph.steps[path]).state is CacheState.HIT


def _target(entry: LastEvent | None) -> AssetCheckEvaluationTargetMaterializationData | None:
    """The asset's last materialization, which the UI shows beside the result."""
    record = entry.record if entry else None
    if record is None:
        return None
    return AssetCheckEvaluationTargetMaterializationData(
        storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
    )
