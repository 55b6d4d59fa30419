"""``MarinIOManager``: finishes a step's output, and loads it into ordinary Dagster assets."""

import pathlib
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field, model_validator

from marin_dagster.assets.step_control import StepControl, step_control
from marin_dagster.cache import (
    ArtifactRecord,
    Attempt,
    Hit,
    LeaseTiming,
    OutputDir,
    Status,
    StepCache,
    read_record,
    read_status,
)
from marin_dagster.errors import OutputNotReadyError, RecordError, StepError
from marin_dagster.events.asset_records import last_events, last_version
from marin_dagster.events.metadata import (
    finished_at,
    hit_facts,
    last_output_path,
    output_metadata,
    record_of,
    report_cut_off,
)
from marin_dagster.events.metadata_keys import (
    ADDRESS,
    BYTES,
    CACHE,
    DURATION_S,
    FILES,
    NAME_WITH_HASH,
    OUTPUT_PATH,
)
from marin_dagster.events.previews import previews_of
from marin_dagster.steps import is_mutable

_DEFAULT_TIMING = LeaseTiming()


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


class MarinIOManager(dg.ConfigurableIOManager):
    """Commits the outputs of steps to the status-file cache, and loads them for other assets.

    All workers on one store must use the same lease times; the defaults are Marin's.
    """

    lease_refresh_s: float = Field(
        default=_DEFAULT_TIMING.refresh_s,
        gt=0,
        description="Seconds between renewals of the lease on an output that is being built.",
    )
    lease_stale_s: float = Field(
        default=_DEFAULT_TIMING.stale_s,
        gt=0,
        description="Seconds without renewal after which another worker may take the lease over.",
    )
    lease_poll_s: float = Field(
        default=_DEFAULT_TIMING.poll_s,
        gt=0,
        description="Seconds between checks of an output that another worker is building.",
    )
    previews: bool = Field(
        default=True,
        description="Show small pictures, Markdown, CSV and JSON files at the top of an output on "
        "its materialization.",
    )

    @model_validator(mode="after")
    def _check_timing(self) -> "MarinIOManager":
        if self.lease_stale_s <= self.lease_refresh_s:
            raise ValueError(
                f"lease_stale_s ({self.lease_stale_s}) must be longer than lease_refresh_s "
                f"({self.lease_refresh_s}), or every lease is stale while it is held."
            )
        return self

    @property
    def cache(self) -> StepCache:
        """The cache with this resource's settings."""
        return StepCache(
            LeaseTiming(
                refresh_s=self.lease_refresh_s,
                stale_s=self.lease_stale_s,
                poll_s=self.lease_poll_s,
            )
        )

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Commit an attempt, or report a cache hit; add the materialization's metadata.

        Raises:
            StepError: the value is not the output of a step.
            MarinDagsterError: the commit failed; the attempt is marked as failed.
        """
        if isinstance(obj, Attempt):
            with (step_control.get() or StepControl()).failing():
                try:
                    record: ArtifactRecord | None = obj.commit()
                except BaseException:
                    report_cut_off(context, obj)
                    raise
            seconds = round(obj.duration_s, 3)
            metadata: dict[str, Any] = {CACHE: "built", DURATION_S: seconds}
        elif isinstance(obj, Hit):
            record = record_of(obj, context.log)
            metadata = hit_facts(obj, record)
        else:
            raise StepError(
                f"asset {context.asset_key.to_user_string()!r}: its IO manager commits outputs of "
                f"marin_dagster steps, not {type(obj).__name__} values. Give the asset another "
                "io_manager_key."
            )
        if is_mutable(obj.step):
            # The cache sensor recognizes the build by it.
            metadata |= finished_at(obj.folder)
        if (files := _files(context, obj.folder)) is not None:
            metadata |= {FILES: len(files), BYTES: sum(files.values())}
            if self.previews:
                metadata |= previews_of(obj.folder, files, log=context.log.warning)
        # Only on the materialization: metadata of the output is stored in a second event, too.
        context.step_context.add_asset_metadata(
            output_metadata(obj.folder, record, metadata), asset_key=context.asset_key
        )

    def load_input(self, context: dg.InputContext) -> Any:
        """Load a finished output as the type of the input's annotation.

        ``str`` and ``pathlib.Path`` receive the output path, a pydantic model the validated
        ``result`` of the record, ``dict`` the plain ``result``, anything else a
        :class:`StepOutput`.

        A step of another code location, which an ``AssetSpec`` represents here, is loaded from the
        output path of its last materialization.

        Raises:
            OutputNotReadyError: the output is missing or not finished, or its record does not hold
                what the annotation needs.
            StepError: neither the asset's definition nor its last materialization has the output
                path of a step.
        """
        name, path = _source(context)
        where = f"step {name} ({path})"
        folder = OutputDir.at(path)
        status = read_status(folder)
        if status is not Status.SUCCESS:
            raise OutputNotReadyError(
                f"{where}: its output is not finished (status: {status or 'missing'}). Materialize "
                f"asset {context.asset_key.to_user_string()!r} first."
            )
        wanted = _plain_type(context.dagster_type.typing_type)
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


def cache_of(resources: Any, io_manager_key: str, asking: str) -> StepCache:
    """The cache with the settings of the :class:`MarinIOManager` among Dagster's resources.

    Args:
        resources: what Dagster gives as ``context.resources``.
        io_manager_key: the IO manager's resource key.
        asking: the caller, as the error names it.

    Raises:
        StepError: the resource is something else.
    """
    cache: StepCache | None = getattr(getattr(resources, io_manager_key), "cache", None)
    if cache is None:
        raise StepError(
            f"{asking}: the resource {io_manager_key!r} is not a MarinIOManager. Make it one, or "
            "give another io_manager_key."
        )
    return cache


def _source(context: dg.InputContext) -> tuple[str, str]:
    """The name of the step to load, in its code location, and its output path."""
    upstream = context.upstream_output
    metadata = (upstream.definition_metadata if upstream else None) or {}
    address = metadata.get(NAME_WITH_HASH, metadata.get(ADDRESS))
    if address is not None:
        return _text(address), _text(metadata["dagster/uri"])
    key = context.asset_key
    entry = last_events(context.instance, [key]).get(key)
    path = last_output_path(entry)
    if path is None:
        raise StepError(
            f"asset {key.to_user_string()!r}: MarinIOManager loads the outputs of marin_dagster "
            f"steps. This code location does not build the asset from one, and its last "
            f"materialization has no {OUTPUT_PATH!r}. If another code location builds it from a "
            "step, materialize it there first; else load it with the IO manager that stored it."
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


def _files(context: dg.OutputContext, folder: OutputDir) -> dict[str, int] | None:
    try:
        return folder.files()
    except Exception as error:  # each filesystem has its own
        # The output is committed by now; a listing that fails must not make the step fail.
        context.log.warning(f"could not list {folder.url}: {error}")
        return None


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))
