"""Loads finished outputs of steps into ordinary assets, as the type that they ask for."""

import pathlib
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import dagster as dg
from pydantic import BaseModel

from marin_dagster.assets.step_op import StepOp
from marin_dagster.cache import ArtifactRecord, OutputDir, Status, read_record, read_status
from marin_dagster.errors import OutputNotReadyError, RecordError, StepError
from marin_dagster.events.asset_records import (
    AssetPartition,
    last_partition_events,
    last_version,
)
from marin_dagster.events.metadata import last_output_path
from marin_dagster.events.metadata_keys import ADDRESS, NAME_WITH_HASH, OUTPUT_PATH
from marin_dagster.steps.protocol import address


@dataclass(frozen=True)
class StepOutput:
    """A finished output of a step, as an asset downstream receives it."""

    path: str
    """A local folder or a URL."""
    name_with_hash: str
    """The step that made it; of a lazy artifact, its address."""
    record: ArtifactRecord | None
    """What the function returned, the step's attributes and dependencies, and the builder."""

    @property
    def result(self) -> dict[str, Any] | None:
        """What the step's function returned."""
        return self.record.result if self.record else None


def load_output(context: dg.InputContext) -> Any:
    """What :meth:`MarinIOManager.load_input` returns."""
    annotation = context.dagster_type.typing_type
    if not context.has_asset_partitions:
        return _load(context, None, annotation)
    keys = context.asset_partition_keys
    if len(keys) == 1:
        return _load(context, keys[0], annotation)
    of_values = typing.get_args(annotation)[1:] or (StepOutput,)
    return {key: _load(context, key, of_values[0]) for key in keys}


def _load(context: dg.InputContext, partition: str | None, annotation: Any) -> Any:
    """The output of an asset, or of a partition of it, as the type of an annotation."""
    name, path = _source(context, partition)
    where = f"step {name} ({path})"
    folder = OutputDir.at(path)
    status = read_status(folder)
    if status is not Status.SUCCESS:
        raise OutputNotReadyError(
            f"{where}: its output is not finished (status: {status or 'missing'}). Materialize "
            f"asset {AssetPartition(context.asset_key, partition)} first."
        )
    wanted = _plain_type(annotation)
    if wanted is str:
        return path
    if isinstance(wanted, type) and issubclass(wanted, pathlib.PurePath):
        if not folder.is_local:
            raise OutputNotReadyError(
                f"{where}: a pathlib path cannot name a URL. Annotate the input with str."
            )
        return wanted(folder.path)
    output = StepOutput(path, name, read_record(folder))
    if isinstance(wanted, type) and issubclass(wanted, (BaseModel, Mapping)):
        if output.record is None:
            raise OutputNotReadyError(
                f"{where}: it is finished but has no record to load. Rebuild it with force."
            )
        if issubclass(wanted, BaseModel):
            return output.record.typed_result(wanted, where=where)
        return output.result or {}
    return output


def _source(context: dg.InputContext, partition: str | None) -> tuple[str, str]:
    """The name of the step to load, in its code location, and its output path."""
    upstream = context.upstream_output
    if partition is not None and upstream is not None:
        op = None
        with suppress(dg.DagsterInvariantViolationError):  # this run does not build it
            op = upstream.op_def.compute_fn
        if isinstance(op, StepOp):
            step = op.at(partition).step
            return address(step), step.output_path
    metadata = (upstream.definition_metadata if upstream else None) or {}
    named = metadata.get(NAME_WITH_HASH, metadata.get(ADDRESS))
    if named is not None:
        return _text(named), _text(metadata["dagster/uri"])
    asset = AssetPartition(context.asset_key, partition)
    key = asset.key
    entry = last_partition_events(context.instance, [asset]).get(asset)
    path = last_output_path(entry)
    if path is None:
        raise StepError(
            f"asset {str(asset)!r}: MarinIOManager loads the outputs of marin_dagster "
            f"steps. This code location does not build the asset from one, and its last "
            f"materialization has no {OUTPUT_PATH!r}. If another code location builds it from a "
            "step, materialize it there first; else load it with the IO manager that stored it."
            if partition is None
            else f"asset {str(asset)!r} has no materialization with {OUTPUT_PATH!r}. Materialize "
            "this partition first; if no step of marin_dagster builds the asset, load it with the "
            "IO manager that stored it."
        )
    record = None
    with suppress(RecordError):  # whatever needs the record reads it again and reports the error
        record = read_record(OutputDir.at(path))
    if record is None or not record.name:
        return key.to_user_string(), path
    if record.version:
        return f"{record.name}/{record.version}", path
    return f"{record.name}_{last_version(entry)}", path


def _plain_type(annotation: Any) -> Any:
    """The class of an annotation, without type arguments and ``| None``."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        others = [part for part in typing.get_args(annotation) if part is not type(None)]
        annotation = others[0] if len(others) == 1 else None
    return typing.get_origin(annotation) or annotation


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))
