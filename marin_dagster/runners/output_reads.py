"""``noting_reads``: which outputs a step's function reads, by an audit hook of the interpreter.

The hook sees the local files that Python opens: ``open``, ``os.open``, ``pathlib``, and what uses
these, such as fsspec's local files and ``numpy.load``. It does not see what C code opens (pyarrow,
sqlite3), child processes and object stores. It follows symlinks to folders, not symlinks to files.

An audit hook cannot be removed, so it is installed when the first step runs, and does nothing
outside of steps. It looks at the first file of each folder only.
"""

import contextvars
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from marin_dagster.cache import OutputDir
from marin_dagster.cache.status import STATUS_FILE

READS_FILE = ".step_reads.json"
"""What a job's function has read, until the driver has read it."""

_MAX_FOLDERS = 100_000
"""Folders that are remembered for one step."""
_MAX_READS = 1_000
"""Folders of undeclared files that are noted for one step."""
_BOOKKEEPING = ".executor_"
"""How the names of files begin that the cache reads, also inside a step's function."""


@dataclass(frozen=True)
class ReadScope:
    """Where to look for a step's reads. Local folders; those behind symlinks are listed, too."""

    prefixes: tuple[str, ...]
    """The prefixes of the graph's outputs."""
    declared: tuple[str, ...]
    """The step's own output and those of its direct dependencies, which it may read."""


@dataclass(frozen=True)
class OutputRead:
    """An output that a function has read."""

    output_path: str
    """The output's folder, without symlinks."""
    name: str
    """The folder below its prefix, which is the step's name with hash or address."""
    file: str
    """The first file that was opened there, as the function named it."""


@dataclass(eq=False)
class Reads:
    """What the function of one step has read."""

    scope: ReadScope
    known: set[str] = field(default_factory=set)
    """Absolute folders that need no second look, as the function names them."""
    _files: dict[str, str] = field(default_factory=dict)
    """The first file of each undeclared folder below a prefix."""

    def note(self, path: Any, flags: Any) -> None:
        """Note that a file is being opened. Never raises an error of its own."""
        try:
            if type(path) is not str:
                path = os.fsdecode(path)
            if not path.startswith("/"):
                path = os.path.join(os.getcwd(), path)
            folder, _, name = path.rpartition("/")
            self._look(folder or "/", name, flags)
        except (TypeError, ValueError, OSError):
            return  # a file descriptor, or no valid path: nothing is opened by name

    def _look(self, folder: str, name: str, flags: int) -> None:
        if folder in self.known or len(self.known) >= _MAX_FOLDERS:
            return
        real = os.path.realpath(folder)
        # A declared folder may contain symlinks to others, so the name counts, too.
        if not _below(real, self.scope.prefixes) or any(
            _below(one, self.scope.declared) for one in (real, os.path.normpath(folder))
        ):
            self.known.add(folder)
            return
        only_writes = flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_TRUNC
        if only_writes or name.startswith(_BOOKKEEPING) or len(self._files) >= _MAX_READS:
            return
        self.known.add(folder)
        self._files[real] = f"{folder}/{name}"

    def outputs(self) -> list[OutputRead]:
        """The undeclared outputs that were read, each with one file; other files are left out."""
        found: dict[str, OutputRead] = {}
        for folder, file in list(self._files.items()):
            prefix = max((one for one in self.scope.prefixes if _below(folder, (one,))), key=len)
            while folder != prefix and not os.path.exists(f"{folder}/{STATUS_FILE}"):
                folder = os.path.dirname(folder)
            if folder != prefix:
                read = OutputRead(folder, os.path.relpath(folder, prefix), file)
                found.setdefault(folder, read)
        return list(found.values())


@contextmanager
def noting_reads(scope: ReadScope | None, *, whole_process: bool = False) -> Iterator[Reads | None]:
    """Note what the body reads.

    Args:
        scope: where to look; None for nowhere.
        whole_process: whether all threads of the process belong to the body. Otherwise these are
            the calling thread and threads that :func:`inherit_reads` has been applied to.
    """
    global _of_process
    if scope is None:
        yield None
        return
    _install()
    reads = Reads(scope)
    token, before = _of_context.set(reads), _of_process
    if whole_process:
        _of_process = reads
    try:
        yield reads
    finally:
        _of_context.reset(token)
        _of_process = before


def inherit_reads() -> Callable[[], None]:
    """Called in a thread, returns what a thread that it starts must call first."""
    reads = _of_context.get()

    def inherit() -> None:
        _of_context.set(reads)

    return inherit


def write_reads(folder: OutputDir, job: str, reads: Reads | None) -> None:
    """Leave what a job's function has read for its driver; no file if that is nothing.

    Raises:
        StoreError: the store refused.
    """
    outputs = [] if reads is None else reads.outputs()
    if outputs:
        content = {"job": job, "outputs": [asdict(one) for one in outputs]}
        folder.write(READS_FILE, json.dumps(content).encode())


def take_reads(folder: OutputDir, job: str) -> list[OutputRead]:
    """What :func:`write_reads` has left, and remove it; empty if it is of another job.

    Raises:
        StoreError: the store refused.
    """
    content = folder.read(READS_FILE)
    if content is None:
        return []
    folder.delete(READS_FILE)
    try:
        left = json.loads(content)
        return [OutputRead(**one) for one in left["outputs"]] if left["job"] == job else []
    except (ValueError, TypeError, KeyError):
        return []


_of_context: contextvars.ContextVar[Reads | None] = contextvars.ContextVar(
    "marin_dagster_reads", default=None
)
"""The reads of the step whose function runs in this context."""
_of_process: Reads | None = None
"""The reads of the step to which all threads of this process belong."""
_installing = threading.Lock()
_is_installed = False


def _install() -> None:
    global _is_installed
    with _installing:
        if not _is_installed:
            sys.addaudithook(_on_event)
            _is_installed = True


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        reads = _of_context.get() or _of_process
        if reads is not None:
            path = arguments[0]
            # Nearly always so, and this line runs for every file that a step opens.
            if type(path) is str and path[: path.rfind("/")] in reads.known:
                return
            reads.note(path, arguments[2])


def _below(folder: str, tops: tuple[str, ...]) -> bool:
    """Whether a folder is one of others, or inside one."""
    return any(folder == top or folder.startswith(f"{top}/") for top in tops)
