"""Who built an output, from which commit, when, and with which command line or in which run.

Records are read by many, so nothing here holds a credential: command line, remote and what a launch
has published are scrubbed.
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
"""Fields without which Marin takes a published provenance for malformed."""

_GIT_TIMEOUT_S = 30


@dataclass(frozen=True)
class RunIdentity:
    """The Dagster run that builds an output."""

    job_name: str
    run_id: str
    from_script: bool = False
    """The run's process is the user's own script, whose command line is worth keeping."""


@dataclass(frozen=True)
class Provenance:
    """Where an output comes from, with Marin's fields. Unknown git facts are empty."""

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
        """The same for what a Dagster run builds.

        The command line of a run worker is Dagster's own: it says nothing of the launch, and holds
        the configuration of the instance. The run's identity takes its place.
        """
        known = {one.name: getattr(self, one.name) for one in fields(Provenance)}
        if not run.from_script:
            known["command_line"] = ()
        return RunProvenance(**known, dagster_job=run.job_name, dagster_run_id=run.run_id)

    def to_json(self) -> str:
        """As ``MARIN_PROVENANCE`` holds it, for this package and for Marin."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class RunProvenance(Provenance):
    """Provenance of what a Dagster run has built. Marin's readers pass over what is added here."""

    dagster_job: str = field(kw_only=True)
    """Name of the run's job."""
    dagster_run_id: str = field(kw_only=True)
    """Id of the run."""


AnyProvenance = Annotated[RunProvenance | Provenance, Field(union_mode="left_to_right")]
"""What a record holds: the former where it names a run."""

_PUBLISHED: TypeAdapter[RunProvenance | Provenance] = TypeAdapter(AnyProvenance)

_capture_once = functools.cache(lambda: (_from_environment() or _from_git()).scrubbed())
_capturing = threading.Lock()
_of_this_build: ContextVar[Provenance | None] = ContextVar("marin_dagster_provenance", default=None)


def launch_provenance() -> Provenance:
    """What to record of a build: what the caller of the step's function says, else this process's.

    That is what ``MARIN_PROVENANCE`` says, else git's; asked once. Never raises: outside a
    checkout, or without git, the git fields stay empty.
    """
    if (given := _of_this_build.get()) is not None:
        return given
    # functools.cache alone lets threads that come at once all ask git.
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
    """The tree of the tracked content that runs, whether committed or not.

    The same hash as Marin's, which asks ``git stash create``. That locks the index, and when it is
    interrupted the lock stays and stops the user's next commit; a copy of the index does not.
    """
    index = _git("rev-parse", "--git-path", "index")
    if not index or not _git("rev-parse", "--verify", "-q", "HEAD"):
        return ""
    # A full temporary folder costs the hash, and not the hours of work that ask for it.
    with suppress(OSError), tempfile.TemporaryDirectory() as folder:
        # With its time: git compares it with the files' to find changes within one clock tick.
        copy = shutil.copy2(index, folder) if os.path.exists(index) else f"{folder}/index"
        _git("add", "--update", ":/", index=copy)
        return _git("rev-parse", "--short", _git("write-tree", index=copy))
    return ""


def _git(*arguments: str, index: str | None = None) -> str:
    """What git says, or nothing where it has nothing to say or is not there."""
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
