"""Drift: an output of a lazy artifact that was built by another recipe than today's.

The address of a lazy artifact is its name and version, so a changed recipe finds the old output
there. It is served, with a warning that says what has changed; when the handle expects a
fingerprint, it is an error. ``dev`` versions are built every time and cannot drift. As in Marin.
"""

from dataclasses import dataclass

from marin_dagster.cache.record import ArtifactRecord, read_record
from marin_dagster.cache.store import Folder
from marin_dagster.errors import FingerprintMismatchError
from marin_dagster.steps.fingerprint import describe_drift
from marin_dagster.steps.protocol import StepLike, artifact_version, is_mutable


@dataclass(frozen=True)
class Drift:
    """How the recipe that built an output differs from today's."""

    recorded: str
    """Fingerprint of the recipe that built it."""
    current: str
    """Fingerprint of today's recipe."""
    changes: str
    """The fields that differ, one on each line; empty when the record does not tell."""

    @property
    def message(self) -> str:
        """What has changed, and what to do."""
        changes = f"\n{self.changes}" if self.changes else ""
        return (
            f"drift: it was built by the recipe {self.recorded}, which is {self.current} now. "
            f"Give it a new version to build the new recipe.{changes}"
        )


def find_drift(step: StepLike, folder: Folder) -> Drift | None:
    """The drift of a finished output; None for any step that is no lazy artifact.

    Raises:
        FingerprintMismatchError: it has drifted, and its handle expects a fingerprint.
        RecordError: the record cannot be read.
        StoreError: the store refused.
    """
    if artifact_version(step) is None or is_mutable(step):
        return None
    return drift_from(step, folder, read_record(folder))


def drift_from(step: StepLike, folder: Folder, record: ArtifactRecord | None) -> Drift | None:
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
