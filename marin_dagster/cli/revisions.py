"""The graph of another commit, loaded in a temporary git worktree by another process."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marin_dagster.errors import MarinDagsterError


class RevisionError(MarinDagsterError):
    """Another commit that cannot be found, or whose graph cannot be loaded."""


def resolve_revision(revision: str, folder: Path) -> tuple[Path, str]:
    """The top folder of the repository, and the commit's hash.

    Args:
        revision: in any form that git takes.
        folder: inside the repository.

    Raises:
        RevisionError: it is not in a repository, or the commit does not exist.
    """
    top = Path(_git(folder, "rev-parse", "--show-toplevel"))
    return top, _git(folder, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")


def steps_at(
    commit: str, top: Path, folder: Path, graph: str, partition: str | None
) -> Mapping[str, Mapping[str, Any]]:
    """The steps of the graph in a commit, as :func:`dump_steps` describes them.

    Args:
        commit: its hash.
        top: the top folder of the repository.
        folder: where the graph's name is looked up, in this working tree.
        graph: the graph's name; of a file, relative to the folder.
        partition: the key with which its function is called.

    Raises:
        RevisionError: the graph cannot be loaded there.
    """
    with _worktree(top, commit) as tree:
        there = tree / folder.relative_to(top)
        command = [sys.executable, "-m", "marin_dagster.cli.graph_dump", graph]
        done = subprocess.run(
            command + ([partition] if partition is not None else []),
            cwd=there if there.is_dir() else tree,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_search_path(top, tree))},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        try:
            answer = json.loads(done.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            answer = {"error": f"its process ended with {done.returncode}"}
    if "error" in answer:
        message = str(answer["error"]).replace(str(tree), f"<{commit[:8]}>")
        raise RevisionError(f"{graph} at {commit[:8]}: {message}")
    found: Mapping[str, Mapping[str, Any]] = answer["steps"]
    return found


@contextmanager
def _worktree(top: Path, commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="marin-dagster-diff-") as folder:
        tree = Path(folder).resolve() / top.name
        # Without the project's hooks, such as one that installs dependencies after a checkout.
        hooks = ("-c", "core.hooksPath=/dev/null")
        _git(top, *hooks, "worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git(top, "worktree", "remove", "--force", str(tree))


def _search_path(top: Path, tree: Path) -> list[str]:
    """``sys.path`` with the commit's folders in place of the working tree's.

    Those of an environment inside the working tree are not in the commit, and stay.
    """
    found = []
    for entry in sys.path:
        path = Path(entry or os.getcwd()).resolve()
        if path.is_relative_to(top) and (tree / path.relative_to(top)).is_dir():
            found.append(str(tree / path.relative_to(top)))
        elif entry:
            found.append(entry)
    return found


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise RevisionError(f"git cannot be run: {error}") from error
    if done.returncode != 0:
        raise RevisionError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()
