"""Why a step runs: what differs from its earlier output, and how its last attempt ended.

The order is: what requested the step, what has changed, what happened since. Reasons that cannot be
read are reported as unknown; reading them never stops a step.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from marin_dagster.cache.attempt import Attempt
from marin_dagster.cache.lease import Lease
from marin_dagster.cache.previous_outputs import PreviousOutputs, Search
from marin_dagster.cache.record import ArtifactRecord, as_recorded
from marin_dagster.cache.status import STATUS_FILE, Status
from marin_dagster.cache.store import OutputDir
from marin_dagster.errors import RecordError, StoreError
from marin_dagster.steps.diff import changes
from marin_dagster.steps.fingerprint import describe_drift
from marin_dagster.steps.protocol import (
    StepLike,
    address,
    artifact_version,
    data_version,
    is_mutable,
)
from marin_dagster.steps.text import limit_lines, shorten, shorten_middle, summarize

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LastBuild:
    """A step's last output, as the scheduler recorded it."""

    path: str
    """Its path."""
    version: str
    """Its data version."""
    at: datetime
    """When the scheduler recorded it."""


@dataclass(frozen=True)
class Prospect:
    """What is known of a step that would be built, before an attempt begins."""

    step: StepLike
    folder: OutputDir
    previous: Status | None
    """The status; None without a valid one."""
    previous_at: datetime | None
    """When that was written, unless it is SUCCESS; None when the store does not know."""
    left_by: Lease | None
    """The lease of a worker that is gone."""
    begun_before: bool = True
    """Whether an earlier attempt may have begun this output."""


@dataclass(frozen=True)
class Reasons:
    """Why a step runs."""

    lines: tuple[str, ...]
    """One for each reason, at least one."""
    compared_with: str | None = None
    """Path of the other output that the step was compared with."""
    record: ArtifactRecord | None = field(default=None, repr=False, compare=False)
    """The record that the step was compared with: of that output, or of its last own build."""

    @property
    def text(self) -> str:
        """One sentence for each line, for displays that drop line breaks."""
        return " ".join(f"{line[:1].upper()}{line[1:]}." for line in self.lines)


def find_reasons(
    attempt: Attempt | Prospect,
    earlier: PreviousOutputs,
    *,
    last: LastBuild | None = None,
    graph: Container[str] = (),
) -> Reasons:
    """Why an attempt was begun, or would be. Call it before the function runs; never raises.

    Args:
        attempt: the attempt, or what is known before there is one.
        earlier: the run's view of earlier outputs.
        last: the step's last output in the scheduler's records.
        graph: output paths of the step's graph; they are not earlier outputs of each other.
    """
    try:
        return _find_reasons(attempt, earlier, last, graph)
    except Exception:
        # Each filesystem raises its own errors, and others write records.
        logger.debug("no reasons for %s", address(attempt.step), exc_info=True)
        return Reasons(("unknown: the files and events of this step could not be read",))


def _find_reasons(
    attempt: Attempt | Prospect,
    earlier: PreviousOutputs,
    last: LastBuild | None,
    graph: Container[str],
) -> Reasons:
    step = attempt.step
    lines: list[str] = []
    if is_mutable(step):
        lines.append(f"version {step.hash_attrs['version']}: built every time")
    elif attempt.previous is Status.SUCCESS:
        lines.append("forced: its output was finished")
    own = _own_record(attempt, earlier)
    removed = _removed(attempt, own, last)
    search: Search | None = None
    if own is not None:
        lines += compare(own, step)
    elif not removed and attempt.previous is not Status.SUCCESS:
        search = _search(attempt, earlier, last, graph)
        lines += _of_search(search, step, last)
    lines += removed
    lines += _of_last_attempt(attempt)
    other = search.found if search is not None else None
    return Reasons(
        tuple(lines), other.path if other else None, record=other.record if other else own
    )


def compare(record: ArtifactRecord, step: StepLike) -> list[str]:
    """How a step's attributes and inputs differ from those in a record.

    Empty when the record shows no difference.
    """
    version = artifact_version(step)
    try:
        lines = _attributes(record, step) if version is None else _recipe(record, step, version)
    except (RecursionError, ValueError):  # nested too deeply, or not JSON
        lines = ["attributes: the record of the earlier output cannot be compared"]
    return lines + _upstream(record, step)


def _own_record(attempt: Attempt | Prospect, earlier: PreviousOutputs) -> ArtifactRecord | None:
    """The record of an earlier build at the step's path."""
    # A finished output with this hash has this recipe; a path by override can have had others.
    same = attempt.previous is Status.SUCCESS and attempt.step.override_output_path is None
    if same or not attempt.begun_before:
        return None
    try:
        found = earlier.at(attempt.folder.url, attempt.step)
    except (RecordError, StoreError) as error:
        logger.debug("no record for %s: %s", address(attempt.step), error)
        return None
    return found.record if found is not None else None


def _removed(
    attempt: Attempt | Prospect, own: ArtifactRecord | None, last: LastBuild | None
) -> list[str]:
    if attempt.previous is not None:
        return []
    if own is not None:
        return [f"its {STATUS_FILE} was removed from the store; its record is still there"]
    if last is not None and last.path == attempt.folder.url:
        return [f"its output was removed from the store; it was recorded at {_time(last.at)}"]
    return []


def _search(
    attempt: Attempt | Prospect,
    earlier: PreviousOutputs,
    last: LastBuild | None,
    graph: Container[str],
) -> Search:
    step = attempt.step
    if last is not None and last.path != attempt.folder.url:
        try:
            if found := earlier.at(last.path, step):
                return Search(found)
        except (RecordError, StoreError) as error:
            logger.debug("no last output of %s: %s", address(step), error)
    return earlier.newest(step, attempt.folder, graph)


def _of_search(search: Search, step: StepLike, last: LastBuild | None) -> list[str]:
    if search.found is not None:
        if lines := compare(search.found.record, step):
            return lines
        if last is not None and last.version == data_version(step):
            return [f"built before in another place: {last.path}"]
        return ["its hash has changed; the record of its earlier output does not show why"]
    if last is None and not search.unreadable:
        others = ", other than steps of this graph" if search.in_graph else ""
        return [f"first build: no earlier output of {step.name} is known{others}"]
    if last is not None:
        return [f"first build here: its last output cannot be read any more: {last.path}"]
    return [f"first build or a changed step: earlier outputs of {step.name} cannot be read"]


def _of_last_attempt(attempt: Attempt | Prospect) -> list[str]:
    since = f" at {_time(attempt.previous_at)}" if attempt.previous_at else ""
    if attempt.previous in (Status.FAILED, Status.DEP_FAILED):
        return [f"the last attempt failed{since}"]
    lease = attempt.left_by
    if lease is not None and attempt.previous is not Status.SUCCESS:
        seen = _time(lease.timestamp)
        return [f"interrupted: {lease.worker_id}" + (f", last seen {seen}" if seen else "")]
    if attempt.previous is Status.RUNNING:
        return [f"interrupted: its worker left no lock; it began{since or ' some time ago'}"]
    return []


def _attributes(record: ArtifactRecord, step: StepLike) -> list[str]:
    if record.config is None:
        return ["attributes: the record of the earlier output does not hold them"]
    found = changes(as_recorded(record.config), as_recorded(step.hash_attrs))
    return limit_lines([f"attribute {line}" for line in found])


def _recipe(record: ArtifactRecord, step: StepLike, version: str) -> list[str]:
    lines = []
    if record.version != version:
        lines.append(f"version {shorten(record.version or 'none')} -> {version}")
    current = str(step.hash_attrs["fingerprint"])
    if record.fingerprint != current:
        fields = describe_drift(record.fingerprint_payload, step.fingerprint_payload).splitlines()
        recipe = f"recipe {record.fingerprint or 'unknown'} -> {current}"
        lines += [f"config {field}" for field in fields] or [recipe]
    return lines


def changed_itself(record: ArtifactRecord, step: StepLike) -> bool:
    """Whether a step differs from a record by more than the hashes of its inputs: by its own
    attributes or recipe, or by the list of its inputs."""
    try:
        if artifact_version(step) is None:
            of_itself = record.config is not None and bool(_attributes(record, step))
        else:
            of_itself = bool(_recipe(record, step, artifact_version(step) or ""))
    except (RecursionError, ValueError):  # nested too deeply, or not JSON
        return False
    return of_itself or any(not (gone and new) for _, gone, new in input_changes(record, step))


def input_changes(
    record: ArtifactRecord, step: StepLike
) -> Iterator[tuple[str, list[str], list[str]]]:
    """The inputs that differ between a step and a record: each one's name, the hashes or versions
    that are gone, and the new ones."""
    before, now = _by_name(record.deps), _by_name(_identities(record, step))
    for name in sorted(before.keys() | now.keys()):
        gone = sorted(before.get(name, set()) - now.get(name, set()))
        new = sorted(now.get(name, set()) - before.get(name, set()))
        if gone or new:
            yield name, gone, new


def _upstream(record: ArtifactRecord, step: StepLike) -> list[str]:
    lines = []
    for name, *versions in input_changes(record, step):
        gone, new = ([shorten(version) for version in some_of] for some_of in versions)
        at = f"upstream {shorten_middle(name)}"
        if gone and new:
            lines.append(f"{at} changed: {summarize(gone)} -> {summarize(new)}")
        elif new:
            lines.append(f"{at} added: {summarize(new)}")
        else:
            lines.append(f"{at} removed: {summarize(gone)}")
    return limit_lines(lines)


def _identities(record: ArtifactRecord, step: StepLike) -> Iterable[str]:
    """The step's inputs, in the form that the record uses."""
    if any(dep.startswith("/") or "://" in dep for dep in record.deps):
        return step.dep_paths  # a record from before there were identities
    if artifact_version(step) is not None:
        return [str(dep) for dep in step.hash_attrs.get("deps") or ()]
    return step.dep_names


def _by_name(identities: Iterable[str]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for identity in identities:
        # A name may contain "@" or "_"; hashes and dates contain neither.
        name, _, version = identity.rpartition("@" if "@" in identity else "_")
        found[name or identity].add(version)
    return found


def _time(moment: datetime | float | None) -> str:
    if isinstance(moment, float):
        if not math.isfinite(moment):
            return ""
        try:
            moment = datetime.fromtimestamp(moment, UTC)
        except (ValueError, OverflowError, OSError):
            return ""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if moment else ""
