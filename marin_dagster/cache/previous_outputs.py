"""Earlier outputs: those in the store with a step's name but another hash or version."""

import logging
import threading
from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from marin_dagster.cache.circuit_breaker import CircuitBreaker
from marin_dagster.cache.parallel import map_parallel
from marin_dagster.cache.record import RECORD_FILE, ArtifactRecord, read_record
from marin_dagster.cache.status import Status, read_status
from marin_dagster.cache.store import OutputDir
from marin_dagster.errors import RecordError, StoreError
from marin_dagster.steps.artifact_versions import is_version
from marin_dagster.steps.protocol import StepLike, address, artifact_version

logger = logging.getLogger(__name__)

_HASH_DIGITS = 8
_MOST_DATED = 32
"""At most this many outputs are compared by time: the last by name."""
_MOST_READ = 3


@dataclass(frozen=True)
class PreviousOutput:
    """An earlier output and its record."""

    path: str
    """Its path."""
    record: ArtifactRecord
    """Its record."""


@dataclass(frozen=True)
class Search:
    """The result of a search for an earlier output."""

    found: PreviousOutput | None = None
    """The newest one that is finished and has a readable record."""
    unreadable: bool = False
    """There may be some, but the store or a record could not be read."""
    in_graph: bool = False
    """The others of this name are all steps of the same graph."""


@dataclass(frozen=True)
class _Listing:
    hashes: Mapping[str, list[str]]
    """Folders ``name_hash``, by name."""
    versions: list[str]
    """Folders with the name of a version."""


@dataclass(eq=False)
class PreviousOutputs:
    """Earlier outputs, as one run sees them. Each folder is listed once, on demand; after a
    timeout, its bucket is not asked again. Safe to use from several threads."""

    _listings: dict[str, _Listing | StoreError] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)
    _breaker: CircuitBreaker = field(default_factory=CircuitBreaker)

    def at(self, path: str, step: StepLike) -> PreviousOutput | None:
        """The output at a path, if its record names this step.

        Raises:
            RecordError: its record cannot be read.
            StoreError: the store refused, or timed out before.
        """
        with self._breaker.asking(path):
            record = read_record(OutputDir.at(path))
        return (
            PreviousOutput(path, record)
            if record is not None and record.name == step.name
            else None
        )

    def newest(self, step: StepLike, folder: OutputDir, but: Container[str]) -> Search:
        """The newest other finished output with the step's name, in the same folder.

        Args:
            step: the step.
            folder: its output.
            but: output paths to ignore, such as those of other steps of the graph.
        """
        base = folder.url.removesuffix(folder.url.rstrip("/").rpartition("/")[2])
        try:
            names = self._others(step, folder, base)
            paths = [base + name for name in names if base + name not in but]
            if not paths:
                return Search(in_graph=bool(names))
            return self._first(step, _newest_first(paths))
        except StoreError as error:
            logger.debug("no earlier output of %s: %s", address(step), error)
            return Search(unreadable=True)

    def _first(self, step: StepLike, paths: list[str]) -> Search:
        unreadable = False
        for path in paths[:_MOST_READ]:
            try:
                with self._breaker.asking(path):
                    finished = read_status(OutputDir.at(path)) is Status.SUCCESS
                found = self.at(path, step) if finished else None
            except RecordError as error:
                logger.debug("passed over an earlier output of %s: %s", address(step), error)
                unreadable = True
                continue
            if found is not None:
                return Search(found)
        return Search(unreadable=unreadable)

    def _others(self, step: StepLike, folder: OutputDir, base: str) -> list[str]:
        own = folder.url.removeprefix(base).rstrip("/")
        version = artifact_version(step)
        if version is not None:
            if step.override_output_path != f"{step.name}/{version}":
                return []
            names = self._list(folder, base).versions
        elif step.override_output_path is not None:
            return []
        else:
            names = self._list(folder, base).hashes.get(own[: -_HASH_DIGITS - 1], [])
        return [name for name in names if name != own]

    def _list(self, folder: OutputDir, base: str) -> _Listing:
        with self._locks.setdefault(base, threading.Lock()):
            if base not in self._listings:
                above = folder.path.rstrip("/").rpartition("/")[0] or "/"
                try:
                    with self._breaker.asking(base):
                        self._listings[base] = _sorted(OutputDir(base, folder.fs, above).names())
                except StoreError as error:
                    self._listings[base] = error
            listing = self._listings[base]
        if isinstance(listing, StoreError):
            raise listing
        return listing


def _sorted(names: list[str]) -> _Listing:
    hashes: dict[str, list[str]] = defaultdict(list)
    for name in names:
        stem, digits = name[: -_HASH_DIGITS - 1], name[-_HASH_DIGITS - 1 :]
        if stem and digits[0] == "_" and all(digit in "0123456789abcdef" for digit in digits[1:]):
            hashes[stem].append(name)
    return _Listing(hashes, [name for name in names if is_version(name)])


def _newest_first(paths: list[str]) -> list[str]:
    if len(paths) == 1:
        return paths
    latest = {path: OutputDir.at(path) for path in sorted(paths)[-_MOST_DATED:]}
    found = map_parallel(lambda one: one.modified(RECORD_FILE), latest)
    never = datetime.min.replace(tzinfo=UTC)
    return sorted(found, key=lambda path: found[path] or never, reverse=True)
