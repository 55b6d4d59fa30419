"""``MarinIOManager``: finishes a step's output, and loads it into ordinary Dagster assets."""

from typing import Any

import dagster as dg
from pydantic import Field, model_validator

from marin_dagster.assets.output_loader import load_output
from marin_dagster.assets.partition_builds import BuiltPartitions
from marin_dagster.assets.step_control import StepControl, step_control
from marin_dagster.cache import (
    ArtifactRecord,
    Attempt,
    Hit,
    LeaseTiming,
    OutputDir,
    StepCache,
)
from marin_dagster.errors import StepError
from marin_dagster.events.asset_records import AssetPartition
from marin_dagster.events.metadata import (
    finished_at,
    hit_facts,
    output_metadata,
    record_of,
    report_cut_off,
)
from marin_dagster.events.metadata_keys import (
    BYTES,
    CACHE,
    DURATION_S,
    FILES,
)
from marin_dagster.events.previews import previews_of
from marin_dagster.steps import is_mutable

_DEFAULT_TIMING = LeaseTiming()


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
        if isinstance(obj, BuiltPartitions):
            return  # their op has committed and reported each
        if not isinstance(obj, Attempt | Hit):
            raise StepError(
                f"asset {context.asset_key.to_user_string()!r}: its IO manager commits outputs of "
                f"marin_dagster steps, not {type(obj).__name__} values. Give the asset another "
                "io_manager_key."
            )
        partition = context.asset_partition_key if context.has_asset_partitions else None
        asset = AssetPartition(context.asset_key, partition)
        with (step_control.get() or StepControl()).failing():
            try:
                metadata = self.commit(obj, context.log)
            except BaseException:
                if isinstance(obj, Attempt):
                    report_cut_off(context, asset, obj)
                raise
        # Only on the materialization: metadata of the output is stored in a second event, too.
        context.step_context.add_asset_metadata(metadata, asset_key=context.asset_key)

    def commit(self, value: Attempt | Hit, log: dg.DagsterLogManager) -> dict[str, Any]:
        """Commit an attempt, or read what a hit was built from; metadata of its materialization.

        Raises:
            MarinDagsterError: the commit failed; the attempt is marked as failed.
        """
        if isinstance(value, Attempt):
            record: ArtifactRecord | None = value.commit()
            seconds = round(value.duration_s, 3)
            metadata: dict[str, Any] = {CACHE: "built", DURATION_S: seconds}
        else:
            record = record_of(value, log)
            metadata = hit_facts(value, record)
        if is_mutable(value.step):
            # The cache sensor recognizes the build by it.
            metadata |= finished_at(value.folder)
        if (files := _files(value.folder, log)) is not None:
            metadata |= {FILES: len(files), BYTES: sum(files.values())}
            if self.previews:
                metadata |= previews_of(value.folder, files, log=log.warning)
        return output_metadata(value.folder, record, metadata)

    def load_input(self, context: dg.InputContext) -> Any:
        """Load a finished output as the type of the input's annotation.

        ``str`` and ``pathlib.Path`` receive the output path, a pydantic model the validated
        ``result`` of the record, ``dict`` the plain ``result``, anything else a
        :class:`StepOutput`.

        A step of another code location, which an ``AssetSpec`` represents here, is loaded from the
        output path of its last materialization.

        Of a partitioned asset, the partition that Dagster maps to the run's is loaded; of several,
        a dictionary by partition, whose values have the type that the annotation gives them.

        Raises:
            OutputNotReadyError: the output is missing or not finished, or its record does not hold
                what the annotation needs.
            StepError: neither the asset's definition nor its last materialization has the output
                path of a step.
        """
        return load_output(context)


def _files(folder: OutputDir, log: dg.DagsterLogManager) -> dict[str, int] | None:
    try:
        return folder.files()
    except Exception as error:  # each filesystem has its own
        # The output is committed by now; a listing that fails must not make the step fail.
        log.warning(f"could not list {folder.url}: {error}")
        return None
