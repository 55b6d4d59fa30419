"""Compares a finished output's record, and the status beside it, with the step that declares it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from marin_dagster.cache.drift import Drift, drift_from
from marin_dagster.cache.record import RECORD_FILE, ArtifactRecord, as_recorded, read_record
from marin_dagster.cache.status import STATUS_FILE, Status, read_status
from marin_dagster.cache.store import OutputDir
from marin_dagster.errors import (
    FingerprintMismatchError,
    RecordError,
    StoreError,
    StoreTimeoutError,
)
from marin_dagster.steps.diff import changes
from marin_dagster.steps.protocol import StepLike, artifact_version
from marin_dagster.steps.text import limit_lines, shorten, shorten_middle, summarize


@dataclass(frozen=True)
class Integrity:
    """One look at the files beside a step's output."""

    status: Status | None
    faults: tuple[str, ...] = ()
    """How a finished output disagrees with the step."""
    drift: Drift | None = None
    """Set when a finished output was built by another recipe."""


def check_integrity(step: StepLike) -> Integrity:
    """Compare the files beside a finished output with the step that declares it. Reads only.

    The record must be there, be readable, and name this step, its attributes and its dependencies;
    a lazy artifact's must have the fingerprint that its handle expects. Older forms of a record are
    compared by the fields that they have.

    Args:
        step: a step that runs build; other data may have no record, or that of another step.

    Raises:
        StoreTimeoutError: the store did not answer.
        StoreError: the store refused to read the status.
    """
    folder = OutputDir.at(step.output_path)
    status = read_status(folder)
    if status is not Status.SUCCESS:
        return Integrity(status)
    try:
        record = read_record(folder)
        if record is None:
            missing = f"{STATUS_FILE} holds SUCCESS, but {RECORD_FILE} is missing."
            return Integrity(status, (missing,))
        faults = tuple(_differences(step, record))
        if faults and folder.read(RECORD_FILE) is None:
            # An .executor_info from before records: its attributes and paths may be outdated.
            faults = faults if record.name != step.name else ()
        return Integrity(status, faults, drift_from(step, folder, record))
    except StoreTimeoutError:
        raise
    except (StoreError, RecordError, FingerprintMismatchError) as error:
        return Integrity(status, (str(error),))


def _differences(step: StepLike, record: ArtifactRecord) -> Iterator[str]:
    version = artifact_version(step)
    # Older forms leave fields out.
    if record.name and record.name != step.name:
        yield f"{RECORD_FILE} belongs to the step {shorten(repr(record.name))}."
    if record.version and record.version != version:
        yield f"{RECORD_FILE} belongs to the version {shorten(repr(record.version))}."
    if version is None and step.writes_record:
        return  # its function decides what the record holds
    if version is None and record.config is not None:
        declared = as_recorded(step.hash_attrs)
        if record.config != declared:
            diff = "; ".join(limit_lines(changes(record.config, declared)))
            yield f"{RECORD_FILE} has other attributes than the step, recorded -> declared: {diff}."
    deps = list(step.dep_names if version is None else step.hash_attrs.get("deps", ()))
    if record.name and sorted(record.deps) != sorted(deps):
        recorded, declared_deps = Counter(record.deps), Counter(deps)
        more, fewer = _named(recorded - declared_deps), _named(declared_deps - recorded)
        found = "; ".join([f"it has {more}"] * bool(more) + [f"it lacks {fewer}"] * bool(fewer))
        yield f"{RECORD_FILE} has other dependencies than the step: {found}."


def _named(deps: Counter[str]) -> str:
    return summarize(repr(shorten_middle(dep)) for dep in sorted(deps.elements()))
