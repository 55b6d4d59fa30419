"""What a store has to tell that a Dagster instance does not know yet.

The instance's own records say what it knows. What they cannot say in one query, that an owner or a
removal was told already, is in :class:`Told`, which is the sensor's cursor.
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
from marin_dagster.events.asset_records import LastEvent, last_materialization, last_version
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

ASSUMED_VERSION = "INITIAL"
"""The data version that Dagster assumes of an asset that it has never heard of."""


class ChangeKind(StrEnum):
    """What there is to tell of an output; the value of ``marin/cache`` in its event."""

    HIT = "hit"
    """It is finished, and the instance does not know this build."""
    RUNNING = "running"
    """Someone else builds it."""
    FAILED = "failed"
    """It was finished, and what was tried since has failed or was cut off."""
    REMOVED = "removed"
    """It was finished, and is no more."""


@dataclass(frozen=True)
class WatchedStep:
    """A step that the sensor looks at."""

    step: StepLike
    key: dg.AssetKey
    inputs: Mapping[dg.AssetKey, StepLike | None]
    """The steps behind the assets that it depends on; None for an asset that is no step."""


@dataclass(frozen=True)
class StoreChange:
    """What a store tells of one step, beside what the instance knows."""

    watched: WatchedStep
    kind: ChangeKind | None
    """None when there is nothing to tell."""
    fact: str | None
    """What is to be remembered once it is told; None when the instance remembers it."""
    version: str = ""
    """The data version of a HIT."""
    code_version: str = ""
    """The code version of a HIT."""


@dataclass(frozen=True)
class SensorCursor:
    """What was told and no record of the instance says, by digest of the asset key.

    Only outputs that are being built elsewhere or that are gone have an entry.
    """

    facts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, cursor: str | None) -> "SensorCursor":
        """From a cursor; a cursor that is none of ours tells nothing."""
        try:
            facts = json.loads(cursor or "{}")
        except ValueError:
            return cls()
        if not isinstance(facts, dict):
            return cls()
        return cls({key: str(fact) for key, fact in facts.items()})

    @classmethod
    def after(
        cls, before: "SensorCursor", news: Iterable[StoreChange], told: frozenset[dg.AssetKey]
    ) -> "SensorCursor":
        """What is remembered after a tick that has told of ``told``, and put the rest off."""
        facts = {}
        for item in news:
            key = item.watched.key
            known = item.fact if item.kind is None or key in told else before.fact(key)
            if known is not None:
                facts[_digest(key.to_user_string())] = known
        return cls(facts)

    def fact(self, key: dg.AssetKey) -> str | None:
        """What was told of an asset."""
        return self.facts.get(_digest(key.to_user_string()))

    def cursor(self) -> str:
        """As a cursor: the same facts give the same text."""
        return json.dumps(dict(self.facts), sort_keys=True, separators=(",", ":"))


def compare(
    watched: WatchedStep,
    look: LookUp,
    built_at: datetime | None,
    entry: LastEvent | None,
    told: SensorCursor,
) -> StoreChange:
    """What the store tells of a step that the instance does not know.

    A finished output is known when the instance recorded its version last, unless it was gone or
    being built in between and nothing was recorded since: then it was built again. A ``dev``
    version, whose builds all have one address, is known by the time at which it was finished:
    a run records the one that the store gives for what it has built, and a report of the sensor has
    it in its version. Both are the store's, so that no clock is compared with another.

    Args:
        watched: the step.
        look: what the store says.
        built_at: when a ``dev`` version was finished, by the store's clock.
        entry: what the instance recorded last about the asset.
        told: what was told before.
    """
    before = told.fact(watched.key)
    recorded = last_materialization(entry)
    record = f"@{entry.storage_id}" if entry and recorded else "@"
    if look.state is CacheState.UNKNOWN:
        return StoreChange(watched, None, before)
    if look.finished:
        rebuilt = recorded is not None and before is not None and before.endswith(record)
        return _finished(watched, look, built_at, entry, rebuilt)
    if look.state is CacheState.RUNNING:
        owner = _digest(sendable(look.owner or ""))
        return _told_once(watched, ChangeKind.RUNNING, f"{owner}{record}", before)
    if last_output_path(entry) != watched.step.output_path:
        # What the instance knows lies elsewhere: another version, whose folder is its own.
        return StoreChange(watched, None, None)
    # RUNNING without a live lease: the worker is gone.
    failed = look.state is CacheState.FAILED or look.status is Status.RUNNING
    kind = ChangeKind.FAILED if failed else ChangeKind.REMOVED
    return _told_once(watched, kind, f"{kind}{record}", before)


def _told_once(
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
            # A store without times cannot tell one build from the next.
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
            # Dagster has taken its data for one version all along, and what was built from it
            # says so: that it was seen now changes nothing for them.
            version = last_version(entry) or ASSUMED_VERSION
    return StoreChange(
        watched, None if known and not rebuilt else ChangeKind.HIT, None, version, code
    )


def _milliseconds(moment: Any) -> int:
    return round(float(moment) * 1000)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
