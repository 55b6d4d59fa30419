"""Compares a store with a Dagster instance: which changes has the instance not recorded yet?

One query of the instance cannot show whether an owner or a removal was reported already:
:class:`SensorCursor` remembers that.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
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
from marin_dagster.steps.protocol import is_external, is_mutable


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


@dataclass(frozen=True)
class SensorCursor:
    """What was reported and is not in the instance's last records, by digest of the asset key.

    Only outputs that are being built elsewhere, have failed or are gone have an entry.
    """

    facts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, cursor: str | None) -> "SensorCursor":
        """From a cursor; a cursor in another format is treated as empty."""
        try:
            facts = json.loads(cursor or "{}")
        except ValueError:
            return cls()
        if not isinstance(facts, dict):
            return cls()
        return cls({key: str(fact) for key, fact in facts.items()})

    @classmethod
    def after(
        cls,
        before: "SensorCursor",
        changes: Iterable[StoreChange],
        reported: frozenset[dg.AssetKey],
    ) -> "SensorCursor":
        """The cursor after a tick that reported ``reported`` and left the rest for later ticks."""
        facts = {}
        for item in changes:
            key = item.watched.key
            known = item.fact if item.kind is None or key in reported else before.fact(key)
            if known is not None:
                facts[_digest(key.to_user_string())] = known
        return cls(facts)

    def fact(self, key: dg.AssetKey) -> str | None:
        """What was reported of an asset."""
        return self.facts.get(_digest(key.to_user_string()))

    def cursor(self) -> str:
        """As text; the same facts give the same text."""
        return json.dumps(dict(self.facts), sort_keys=True, separators=(",", ":"))


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
        entry: what the instance last recorded of the asset.
        reported: what earlier ticks reported.
    """
    before = reported.fact(watched.key)
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
    code = recorded_code_version(step, look.drift) or version
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
        known = recorded is not None and (recorded.tags or {}).get(CODE_VERSION_TAG) == code
        if recorded is None or OUTPUT_PATH not in recorded.metadata:
            # Dagster has assumed one version of it so far, and the assets built from it have
            # recorded that version: the first report keeps it, so that they stay fresh.
            version = last_version(entry) or ASSUMED_VERSION
    return StoreChange(watched, None if known and not rebuilt else ChangeKind.HIT, None, version)


def _milliseconds(moment: Any) -> int:
    return round(float(moment) * 1000)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
