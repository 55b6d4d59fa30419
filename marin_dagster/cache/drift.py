"""Drift: an output of a lazy artifact that was built by another recipe than today's.

The address of a lazy artifact is its name and version, so a changed recipe finds the old output
there. The cache serves it and warns of what has changed; if the handle expects a fingerprint, it
raises an error. Dev versions are built every time and cannot drift. As in Marin.
"""

import logging
import threading
from dataclasses import dataclass, field

from marin_dagster.cache.record import ArtifactRecord, read_record
from marin_dagster.cache.store import OutputDir
from marin_dagster.errors import FingerprintMismatchError
from marin_dagster.steps.fingerprint import describe_drift
from marin_dagster.steps.protocol import StepLike, address, artifact_version, is_mutable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drift:
    """How the recipe that built an output differs from today's."""

    recorded: str
    """Fingerprint of the recipe that built it."""
    current: str
    """Fingerprint of today's recipe."""
    changes: str
    """The fields that differ, one on each line; empty when the record does not hold them."""

    @property
    def message(self) -> str:
        """What has changed, and what to do."""
        # In one line: the pages that show it drop line breaks.
        changes = f" Changed: {'; '.join(self.changes.splitlines())}." if self.changes else ""
        return (
            f"drift: it was built by the recipe {self.recorded}; the recipe is now {self.current}. "
            f"Give it a new version to build the new recipe.{changes}"
        )


@dataclass(eq=False)
class DriftLog:
    """Warns of each drifted output once, in Python's logging and in the log of a run."""

    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _warned: set[tuple[str, bool]] = field(default_factory=set)

    def warn(self, step: StepLike, drift: Drift, run_log: logging.Logger | None = None) -> None:
        """Log a WARNING that names the step, its path and what has changed.

        Args:
            step: the step that is served.
            drift: what was found.
            run_log: the log of the run that serves it, if any.
        """
        message = f"{address(step)} ({step.output_path}): {drift.message}"
        # A run log can include Python's logging.
        both = run_log is not None and _reaches(logger, run_log)
        if self._is_first(step, in_run=False):
            logger.warning(message)
            if both:
                self._is_first(step, in_run=True)
        if run_log is not None and self._is_first(step, in_run=True):
            run_log.warning(message)

    def _is_first(self, step: StepLike, *, in_run: bool) -> bool:
        key = step.output_path, in_run
        with self._mutex:
            first = key not in self._warned
            self._warned.add(key)
        return first


def _reaches(source: logging.Logger, run_log: logging.Logger) -> bool:
    kinds = tuple(type(handler) for handler in run_log.handlers)
    at: logging.Logger | None = source if source.isEnabledFor(logging.WARNING) else None
    while at is not None:
        if any(isinstance(handler, kinds) for handler in at.handlers):
            return True
        at = at.parent if at.propagate else None
    return False


def find_drift(step: StepLike, folder: OutputDir) -> Drift | None:
    """The drift of a finished output; None for any other step than a lazy artifact.

    Raises:
        FingerprintMismatchError: it has drifted, and its handle expects a fingerprint.
        RecordError: the record cannot be read.
        StoreError: the store refused.
    """
    if artifact_version(step) is None or is_mutable(step):
        return None
    return drift_from(step, folder, read_record(folder))


def drift_from(step: StepLike, folder: OutputDir, record: ArtifactRecord | None) -> Drift | None:
    """:func:`find_drift` by a record that has been read."""
    version = artifact_version(step)
    if version is None or is_mutable(step):
        return None
    current = str(step.hash_attrs["fingerprint"])
    if record is None or record.fingerprint == current:
        return None
    changes = describe_drift(record.fingerprint_payload, step.fingerprint_payload)
    drift = Drift(record.fingerprint or "unknown", current, changes)
    if step.hash_attrs.get("expected_fingerprint") is not None:
        raise FingerprintMismatchError(
            f"{step.name}@{version} ({folder.url}) expects the fingerprint {current}; "
            f"{drift.message}"
        )
    return drift
