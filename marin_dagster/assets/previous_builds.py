"""``PreviousBuilds``: when and from what a run's assets were built before; for the reasons."""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import dagster as dg

from marin_dagster.cache import Attempt
from marin_dagster.cache.cache import LookUp
from marin_dagster.cache.expected_reasons import ExpectedReasons, find_expected_reasons
from marin_dagster.cache.previous_outputs import PreviousOutputs
from marin_dagster.cache.reasons import LastBuild, Reasons, find_reasons
from marin_dagster.events.asset_records import (
    AssetPartition,
    LastEvent,
    last_events,
    last_partition_events,
    last_version,
)
from marin_dagster.events.metadata import last_output_path
from marin_dagster.steps import StepGraph

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class PreviousBuilds:
    """Earlier builds of the steps of one run. All are read at once, when the first step needs one.

    Thread-safe.
    """

    instance: dg.DagsterInstance | None
    """Knows earlier builds; with None, only the store does."""
    assets: Sequence[AssetPartition]
    """The assets and partitions that the run may build."""
    earlier: PreviousOutputs = field(default_factory=PreviousOutputs)
    """Earlier outputs in the store."""
    _last: dict[AssetPartition, LastBuild] | None = None
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def expected_reasons(
        self, graph: StepGraph, looks: Mapping[str, LookUp], assets: Mapping[str, AssetPartition]
    ) -> ExpectedReasons:
        """Why steps of a graph would run. Reasons that cannot be read are left out.

        Args:
            graph: the steps.
            looks: the look-up of each step that would run, by output path.
            assets: the asset, or its partition, of each output path.
        """
        if not looks:
            return ExpectedReasons()
        try:
            builds = self._last_builds()
        except Exception:
            # Any exception: the storage is the user's choice.
            logger.debug("could not read the assets' last materializations", exc_info=True)
            builds = {}
        last = {path: builds[assets[path]] for path in looks if assets[path] in builds}
        return find_expected_reasons(graph, looks, self.earlier, last)

    def reasons(
        self, attempt: Attempt, asset: AssetPartition, graph: StepGraph, log: dg.DagsterLogManager
    ) -> Reasons:
        """Why an attempt to build an asset began. Reasons that cannot be read are left out.

        A partition is compared with its own last build, or else with the newest of another.
        """
        try:
            last = self._last_builds().get(asset)
        except Exception:
            # Any exception: the storage is the user's choice.
            log.debug("could not read the asset's last materialization", exc_info=True)
            last = None
        return find_reasons(attempt, self.earlier, last=last, graph=graph.steps)

    def was_finished(self, attempt: Attempt, asset: AssetPartition) -> bool:
        """Whether the instance has recorded a finished output at the attempt's path; False when its
        records cannot be read."""
        try:
            last = self._last_builds().get(asset)
        except Exception:
            return False
        return last is not None and last.path == attempt.folder.url

    def _last_builds(self) -> dict[AssetPartition, LastBuild]:
        with self._mutex:
            if self._last is None:
                events = self._last_events(self.instance) if self.instance else {}
                found = {asset: _last_build(event) for asset, event in events.items()}
                self._last = {asset: build for asset, build in found.items() if build}
            return self._last

    def _last_events(self, instance: dg.DagsterInstance) -> dict[AssetPartition, LastEvent]:
        events = last_partition_events(instance, self.assets)
        new = [asset for asset in self.assets if asset.partition and asset not in events]
        of_others = last_events(instance, list({asset.key for asset in new}))
        events |= {asset: of_others[asset.key] for asset in new if asset.key in of_others}
        return events


def _last_build(event: LastEvent) -> LastBuild | None:
    path = last_output_path(event)
    if path is None or event.record is None:
        return None
    at = datetime.fromtimestamp(event.record.timestamp, UTC)
    return LastBuild(path=path, version=last_version(event) or "", at=at)
