"""``BuildHistory``: earlier builds of a run's steps, from Dagster's instance and the store."""

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
from marin_dagster.events.asset_records import LastEvent, last_events, last_version
from marin_dagster.events.metadata import last_output_path
from marin_dagster.steps import StepGraph

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class BuildHistory:
    """Earlier builds of the steps of one run. All are read at once, when the first step needs one.

    Thread-safe.
    """

    instance: dg.DagsterInstance | None
    """Knows earlier builds; with None, only the store does."""
    keys: Sequence[dg.AssetKey]
    """The assets that the run may build."""
    earlier: PreviousOutputs = field(default_factory=PreviousOutputs)
    """Earlier outputs in the store."""
    _last: dict[dg.AssetKey, LastBuild] | None = None
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def expected_reasons(
        self, graph: StepGraph, looks: Mapping[str, LookUp], keys: Mapping[str, dg.AssetKey]
    ) -> ExpectedReasons:
        """Why steps of a graph would run. Reasons that cannot be read are left out.

        Args:
            graph: the steps.
            looks: the look-up of each step that would run, by output path.
            keys: the asset key of each output path.
        """
        if not looks:
            return ExpectedReasons()
        try:
            builds = self._last_builds()
        except Exception:
            # Any exception: the storage is the user's choice.
            logger.debug("could not read the assets' last materializations", exc_info=True)
            builds = {}
        last = {path: builds[keys[path]] for path in looks if keys[path] in builds}
        return find_expected_reasons(graph, looks, self.earlier, last)

    def reasons(
        self, attempt: Attempt, key: dg.AssetKey, graph: StepGraph, log: dg.DagsterLogManager
    ) -> Reasons:
        """Why an attempt to build an asset began. Reasons that cannot be read are left out."""
        try:
            last = self._last_builds().get(key)
        except Exception:
            # Any exception: the storage is the user's choice.
            log.debug("could not read the asset's last materialization", exc_info=True)
            last = None
        return find_reasons(attempt, self.earlier, last=last, graph=graph.steps)

    def was_finished(self, attempt: Attempt, key: dg.AssetKey) -> bool:
        """Whether the instance has recorded a finished output at the attempt's path; False when its
        records cannot be read."""
        try:
            last = self._last_builds().get(key)
        except Exception:
            return False
        return last is not None and last.path == attempt.folder.url

    def _last_builds(self) -> dict[dg.AssetKey, LastBuild]:
        with self._mutex:
            if self._last is None:
                events = last_events(self.instance, self.keys) if self.instance else {}
                found = {key: _last_build(event) for key, event in events.items()}
                self._last = {key: build for key, build in found.items() if build}
            return self._last


def _last_build(event: LastEvent) -> LastBuild | None:
    path = last_output_path(event)
    if path is None or event.record is None:
        return None
    at = datetime.fromtimestamp(event.record.timestamp, UTC)
    return LastBuild(path=path, version=last_version(event) or "", at=at)
