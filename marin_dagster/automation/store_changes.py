"""Compares a store with a Dagster instance: which changes has the instance not recorded yet?

One query of the instance cannot show whether an owner or a removal was reported already:
:class:`SensorCursor` remembers that.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import dagster as dg

from marin_dagster.cache import CacheState, LookUp, Status
from marin_dagster.events.asset_records import (
    AssetPartition,
    LastEvent,
    last_materialization,
    last_version,
)
from marin_dagster.events.found_outputs import ASSUMED_VERSION
from marin_dagster.events.metadata import (
    CODE_VERSION_TAG,
    last_output_path,
    recorded_code_version,
    recorded_version,
    sendable,
)
from marin_dagster.events.metadata_keys import FINISHED_AT, OUTPUT_PATH
from marin_dagster.steps import StepLike
from marin_dagster.steps.protocol import address, is_external, is_mutable

_POSITION = "position"
"""Not a digest, so that a cursor without partitions is the same as before there were any."""


class ChangeKind(StrEnum):
    """How an output has changed; the value of ``marin/cache`` in its event."""

    HIT = "hit"
    """It is finished, and the instance has not recorded this build."""
    RUNNING = "running"
    """A worker elsewhere is building it."""
    FAILED = "failed"
    """It was finished, and a later attempt failed or was cut off."""
    REMOVED = "removed"
    """It was finished, and is gone."""


@dataclass(frozen=True)
class WatchedStep:
    """A step that the sensor watches."""

    step: StepLike
    key: dg.AssetKey
    inputs: Mapping[dg.AssetKey, StepLike | None]
    """The step of each asset that it depends on; None for an asset that no step builds."""
    partition: str | None = None
    """The partition whose step it is; None for an asset without partitions."""
    code_version: str | None = None
    """The asset's code version, where it is not the step's."""

    @property
    def label(self) -> str:
        """The step and its partition, for logs."""
        of = "" if self.partition is None else f" [{self.partition}]"
        return f"{address(self.step)}{of}"

    @property
    def asset(self) -> AssetPartition:
        """The asset, or its partition."""
        return AssetPartition(self.key, self.partition)


@dataclass(frozen=True)
class StoreChange:
    """The difference between the store and the instance for one step."""

    watched: WatchedStep
    kind: ChangeKind | None
    """None when there is nothing to report."""
    fact: str | None
    """What the cursor remembers once it is reported; None when the instance remembers it."""
    version: str = ""
    """The data version of a HIT."""
    code_version: str | None = None
    """The code version of a HIT."""


@dataclass(frozen=True)
class SensorCursor:
    """What was reported and is not in the instance's last records, by digest of the asset or its
    partition, and which partitions have their turn next.

    Only outputs that are being built elsewhere, have failed or are gone have an entry.
    """

    facts: Mapping[str, str] = field(default_factory=dict)
    position: int = 0
    """See :func:`watched_steps`."""

    @classmethod
    def parse(cls, cursor: str | None) -> "SensorCursor":
        """From a cursor; a cursor in another format is treated as empty."""
        try:
            facts = json.loads(cursor or "{}")
        except ValueError:
            return cls()
        if not isinstance(facts, dict):
            return cls()
        position = facts.pop(_POSITION, 0)
        return cls(
            {key: str(fact) for key, fact in facts.items()},
            position if isinstance(position, int) else 0,
        )

    @classmethod
    def after(
        cls,
        before: "SensorCursor",
        changes: Iterable[StoreChange],
        reported: Collection[AssetPartition],
        unchecked: Iterable[AssetPartition] = (),
        position: int = 0,
    ) -> "SensorCursor":
        """The cursor after a tick.

        Args:
            before: the cursor before it.
            changes: what it compared.
            reported: what it reported; it left the other changes for later ticks.
            unchecked: partitions that it did not compare, whose facts stay.
            position: which partitions have their turn next.
        """
        facts = {}
        for item in changes:
            asset = item.watched.asset
            known = item.fact if item.kind is None or asset in reported else before.fact(asset)
            if known is not None:
                facts[_digest(str(asset))] = known
        if before.facts:
            for asset in unchecked:
                if (kept := before.fact(asset)) is not None:
                    facts[_digest(str(asset))] = kept
        return cls(facts, position)

    def fact(self, asset: AssetPartition) -> str | None:
        """What was reported of an asset or a partition."""
        return self.facts.get(_digest(str(asset)))

    def cursor(self) -> str:
        """As text; the same facts give the same text."""
        content = {**self.facts, **({_POSITION: self.position} if self.position else {})}
        return json.dumps(content, sort_keys=True, separators=(",", ":"))


def compare(
    watched: WatchedStep,
    look: LookUp,
    built_at: datetime | None,
    entry: LastEvent | None,
    reported: SensorCursor,
) -> StoreChange:
    """How the store differs from what the instance has recorded of a step.

    The instance knows a finished output when its last record has that version. The exception: the
    output was gone or being built in between, and nothing was recorded since; then it was rebuilt.
    All builds of a ``dev`` version have one address, so the instance knows a build by the time at
    which it was finished: a run records that time, and a report of the sensor has it in its data
    version. Both times are by the store's clock, so that no two clocks are compared.

    Args:
        watched: the step.
        look: its look-up in the store.
        built_at: when a ``dev`` version was finished, by the store's clock.
        entry: what the instance last recorded of the asset or its partition.
        reported: what earlier ticks reported.
    """
    before = reported.fact(watched.asset)
    recorded = last_materialization(entry)
    record = f"@{entry.storage_id}" if entry and recorded else "@"
    if look.state is CacheState.UNKNOWN:
        return StoreChange(watched, None, before)
    if look.finished:
        rebuilt = recorded is not None and before is not None and before.endswith(record)
        return _finished(watched, look, built_at, entry, rebuilt)
    if look.state is CacheState.RUNNING:
        owner = _digest(sendable(look.owner or ""))
        return _reported_once(watched, ChangeKind.RUNNING, f"{owner}{record}", before)
    if last_output_path(entry) != watched.step.output_path:
        # The instance knows another version, in another folder.
        return StoreChange(watched, None, None)
    # RUNNING without a live lease: the worker has died.
    failed = look.state is CacheState.FAILED or look.status is Status.RUNNING
    kind = ChangeKind.FAILED if failed else ChangeKind.REMOVED
    return _reported_once(watched, kind, f"{kind}{record}", before)


def _reported_once(
    watched: WatchedStep, kind: ChangeKind, fact: str, before: str | None
) -> StoreChange:
    return StoreChange(watched, None if fact == before else kind, fact)


def _finished(
    watched: WatchedStep,
    look: LookUp,
    built_at: datetime | None,
    entry: LastEvent | None,
    rebuilt: bool,
) -> StoreChange:
    step = watched.step
    version = recorded_version(step, look.drift)
    of_asset = watched.code_version if look.drift is None else None
    code = of_asset or recorded_code_version(step, look.drift) or version
    known = last_version(entry) == version
    if is_mutable(step):
        if built_at is None:
            # A store without times does not distinguish one build from the next.
            return StoreChange(watched, None, None)
        version = f"{version}-{_milliseconds(built_at.timestamp()):x}"
        latest = last_materialization(entry)
        own = latest.metadata.get(FINISHED_AT) if latest else None
        known = last_version(entry) == version or (
            own is not None and _milliseconds(own.value) == _milliseconds(built_at.timestamp())
        )
    elif is_external(step):
        recorded = last_materialization(entry)
        known = (
            recorded is not None
            and (recorded.tags or {}).get(CODE_VERSION_TAG) == code
            and (watched.partition is None or last_output_path(entry) == step.output_path)
        )
        if recorded is None or OUTPUT_PATH not in recorded.metadata:
            # Dagster has assumed one version of it so far, and the assets built from it have
            # recorded that version: the first report keeps it, so that they stay fresh.
            version = last_version(entry) or ASSUMED_VERSION
    kind = None if known and not rebuilt else ChangeKind.HIT
    return StoreChange(watched, kind, None, version, code)


def _milliseconds(moment: Any) -> int:
    return round(float(moment) * 1000)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
