"""Which user built an output, from which commit, when, and by which command line or run.

Many people read records, so credentials are removed from the command line, the git remote and
``MARIN_PROVENANCE``.
"""

import functools
import getpass
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError

from marin_dagster.cache.secrets import scrub, scrub_arguments

PROVENANCE_VARIABLE = "MARIN_PROVENANCE"
"""Environment variable with a launch's provenance as JSON, which Marin sets in remote jobs."""

_REQUIRED = {"tree_hash", "base_commit", "dirty"}
"""Fields without which Marin rejects a published provenance as malformed."""

_GIT_TIMEOUT_S = 30


@dataclass(frozen=True)
class RunIdentity:
    """The Dagster run that builds an output."""

    job_name: str
    run_id: str
    from_script: bool = False
    """The run's process is the user's script, so its command line is worth recording."""


@dataclass(frozen=True)
class Provenance:
    """Where an output comes from, with Marin's fields. Unknown git fields are empty."""

    tree_hash: str = ""
    """Short git hash of the tracked content of the working tree."""
    base_commit: str = ""
    """Short hash of the commit that the tree was built from."""
    dirty: bool = False
    """Whether anything was uncommitted or untracked."""
    branch: str | None = None
    """Branch, or None for a detached head."""
    built_by: str | None = None
    """User that ran the build."""
    git_remote: str | None = None
    """URL of ``origin``."""
    created_at: str = ""
    """When the launch was captured, ISO 8601, local time."""
    command_line: tuple[str, ...] = ()
    """Command line of the launching process."""

    def scrubbed(self) -> Self:
        """The same without credentials."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        clean: dict[str, Any] = {
            name: scrub(value) for name, value in values.items() if isinstance(value, str)
        }
        return replace(self, **clean, command_line=tuple(scrub_arguments(self.command_line)))

    def in_run(self, run: RunIdentity) -> "RunProvenance":
        """The same for an output that a Dagster run builds.

        Dagster starts run workers, with the configuration of the instance in the command line. The
        run's identity takes its place.
        """
        known = {one.name: getattr(self, one.name) for one in fields(Provenance)}
        if not run.from_script:
            known["command_line"] = ()
        return RunProvenance(**known, dagster_job=run.job_name, dagster_run_id=run.run_id)

    def to_json(self) -> str:
        """The value of ``MARIN_PROVENANCE``, for this package and for Marin."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class RunProvenance(Provenance):
    """Provenance of an output that a Dagster run has built. Marin ignores the added fields."""

    dagster_job: str = field(kw_only=True)
    """Name of the run's job."""
    dagster_run_id: str = field(kw_only=True)
    """Id of the run."""


AnyProvenance = Annotated[RunProvenance | Provenance, Field(union_mode="left_to_right")]
"""The provenance in a record: the former when it names a run."""

_PUBLISHED: TypeAdapter[RunProvenance | Provenance] = TypeAdapter(AnyProvenance)

_capture_once = functools.cache(lambda: (_from_environment() or _from_git()).scrubbed())
_capturing = threading.Lock()
_of_this_build: ContextVar[Provenance | None] = ContextVar("marin_dagster_provenance", default=None)


def launch_provenance() -> Provenance:
    """The provenance to record: that of :func:`built_as`, else this process's.

    The latter comes from ``MARIN_PROVENANCE``, else from git, and is read once. Never raises:
    outside a checkout, or without git, the git fields stay empty.
    """
    if (given := _of_this_build.get()) is not None:
        return given
    # With functools.cache alone, threads that call at once would all run git.
    with _capturing:
        return _capture_once()


@contextmanager
def built_as(provenance: Provenance) -> Iterator[None]:
    """Functions that run in this context and write records themselves record this provenance."""
    token = _of_this_build.set(provenance)
    try:
        yield
    finally:
        _of_this_build.reset(token)


def _from_environment() -> Provenance | None:
    published = os.environ.get(PROVENANCE_VARIABLE)
    if not published:
        return None
    try:
        found = TypeAdapter(dict[str, Any]).validate_json(published)
        if not found.keys() >= _REQUIRED:
            return None
        return _PUBLISHED.validate_json(published)
    except ValidationError:
        return None


def _from_git() -> Provenance:
    return Provenance(
        tree_hash=_tracked_tree(),
        base_commit=_git("rev-parse", "--short", "HEAD"),
        dirty=bool(_git("status", "--porcelain", "--untracked-files=all")),
        branch=_git("symbolic-ref", "--short", "-q", "HEAD") or None,
        built_by=_user(),
        git_remote=_git("remote", "get-url", "origin") or None,
        created_at=datetime.now().isoformat(),
        command_line=tuple(sys.argv),
    )


def _tracked_tree() -> str:
    """The tree of the tracked content, committed or not.

    The same hash as Marin's, which runs ``git stash create``. That locks the index, and if it is
    interrupted, the lock stays and blocks the user's next commit; a copy of the index does not.
    """
    index = _git("rev-parse", "--git-path", "index")
    if not index or not _git("rev-parse", "--verify", "-q", "HEAD"):
        return ""
    # If the temporary folder is full, only the hash is lost, not hours of work.
    with suppress(OSError), tempfile.TemporaryDirectory() as folder:
        # With its time: git compares it with the files' times to find changes in one clock tick.
        copy = shutil.copy2(index, folder) if os.path.exists(index) else f"{folder}/index"
        _git("add", "--update", ":/", index=copy)
        return _git("rev-parse", "--short", _git("write-tree", index=copy))
    return ""


def _git(*arguments: str, index: str | None = None) -> str:
    """git's output; empty when it fails or is not installed."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    if index is not None:
        environment["GIT_INDEX_FILE"] = index
    try:
        done = subprocess.run(
            ["git", *arguments],
            env=environment,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None
