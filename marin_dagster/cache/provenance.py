"""Who built an output, from which commit, when and with which command line."""

import functools
import getpass
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

PROVENANCE_VARIABLE = "MARIN_PROVENANCE"
"""Environment variable with a launch's provenance as JSON, which Marin sets in remote jobs."""

_REQUIRED = {"tree_hash", "base_commit", "dirty"}
"""Fields without which Marin takes a published provenance for malformed."""

_GIT_TIMEOUT_S = 30


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


_capture_once = functools.cache(lambda: _from_environment() or _from_git())
_capturing = threading.Lock()


def launch_provenance() -> Provenance:
    """This process's provenance: what ``MARIN_PROVENANCE`` says, else git's; asked once.

    Never raises: outside a checkout, or without git, the git fields stay empty.
    """
    # functools.cache alone lets threads that come at once all ask git.
    with _capturing:
        return _capture_once()


def _from_environment() -> Provenance | None:
    published = os.environ.get(PROVENANCE_VARIABLE)
    if not published:
        return None
    try:
        found = TypeAdapter(dict[str, Any]).validate_json(published)
        if not found.keys() >= _REQUIRED:
            return None
        return TypeAdapter(Provenance).validate_json(published)
    except ValidationError:
        return None


def _from_git() -> Provenance:
    return Provenance(
        tree_hash=_tracked_tree(),
        base_commit=_git("rev-parse", "--short", "HEAD"),
        dirty=bool(_git("status", "--porcelain", "--untracked-files=all")),
        branch=_git("symbolic-ref", "--short", "-q", "HEAD") or None,
        built_by=_user(),
        # Without the user and password that some URLs carry: records are read by many.
        git_remote=re.sub(r"(?<=://)[^/]*@", "", _git("remote", "get-url", "origin")) or None,
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
