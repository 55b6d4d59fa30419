"""Small files of the cache on any fsspec filesystem: whole reads, whole writes, no caches.

The one place that opens a filesystem. ``use_listings_cache=False`` and whole-object reads make
another process's write visible at once (fsspec/s3fs#851). fsspec itself is imported when a folder
is opened: it is half of what importing this package costs, and defining a graph needs none of it.
"""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from marin_dagster.cache.client_options import options_for
from marin_dagster.errors import StoreError, StoreTimeoutError
from marin_dagster.steps.paths import join

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""Schemes whose filesystem comes with an extra of this package."""

_PATIENCE_S = 90.0
"""Longest time for one file of a network filesystem, with all that its client tries again: s3fs
alone would ask a store that hangs for more than six minutes, gcsfs for ever."""

_AWAY_S = 10.0
"""Seconds after which a refusal is no answer any more: the client has asked in vain till then."""


@contextmanager
def asking(verb: str, where: str) -> Iterator[None]:
    """One question to the store, such as to read ``where``.

    Raises:
        StoreTimeoutError: it gave no useful answer for a long time.
        StoreError: it refused.
    """
    from fsspec.exceptions import FSTimeoutError

    began = time.monotonic()
    try:
        yield
    except StoreError:
        raise
    except FSTimeoutError as error:
        raise StoreTimeoutError(
            f"the store did not {verb} {where}: no useful answer in {_PATIENCE_S:g} s"
        ) from error
    except Exception as error:
        # Not OSError alone: each filesystem's client has network errors of its own.
        kind = StoreTimeoutError if time.monotonic() - began > _AWAY_S else StoreError
        raise kind(f"the store refused to {verb} {where}: {error}") from error


@dataclass(frozen=True)
class OutputDir:
    """An output path on its filesystem."""

    url: str
    """The path as the step states it."""
    fs: Any
    """The filesystem that serves it."""
    path: str
    """The path as the filesystem knows it."""

    @classmethod
    def at(cls, url: str) -> "OutputDir":
        """Open the filesystem of ``url``; touches nothing in the store.

        Raises:
            StoreError: no filesystem serves the URL's scheme, its package is not installed, it is
                not configured, or this process was forked from one that uses it.
        """
        import fsspec

        try:
            fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False, **options_for(url))
        except Exception as error:
            # Some filesystems read their configuration or ask the network here.
            extra = _EXTRAS.get(url.partition("://")[0])
            missing = isinstance(error, ImportError) and extra
            hint = f" Install marin-dagster[{extra}]." if missing else ""
            raise StoreError(f"no filesystem for {url}: {error}.{hint}") from error
        if getattr(fs, "async_impl", False):
            _check_not_forked(url)
        return cls(url=url, fs=fs, path=path)

    @property
    def is_local(self) -> bool:
        """Whether the folder is on this machine's file system."""
        from fsspec.implementations.local import LocalFileSystem

        return isinstance(self.fs, LocalFileSystem)

    def file(self, name: str) -> str:
        """Path of a file directly in the folder, as the filesystem knows it."""
        return f"{self.path.rstrip('/')}/{name}"

    def read(self, name: str) -> bytes | None:
        """The whole file, or None when there is none.

        Raises:
            StoreTimeoutError: the store did not answer.
            StoreError: the store refused.
        """
        with self._asking("read", name):
            try:
                return bytes(self.fs.cat_file(self.file(name), **self._patience("cat_file")))
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Replace the whole file; readers see the old content or the new, never a part.

        Raises:
            StoreTimeoutError: the store did not answer; it has the old content or the new.
            StoreError: the store refused; what was there is still there.
        """
        with self._asking("write", name):
            if self.is_local:
                self._write_local(self.file(name), data)
            else:
                self.fs.pipe_file(self.file(name), data, **self._patience("pipe_file"))

    def delete(self, name: str) -> None:
        """Remove the file; no error when there is none.

        Raises:
            StoreTimeoutError: the store did not answer; it may or may not have removed the file.
            StoreError: the store refused.
        """
        with self._asking("delete", name), suppress(FileNotFoundError):
            self.fs.rm_file(self.file(name), **self._patience("rm_file"))

    def make(self) -> None:
        """Create the folder, with those above it."""
        with self._asking("create", ""):
            self.fs.makedirs(self.path, exist_ok=True)

    def exists(self) -> bool:
        """Whether there is anything at the path, a folder or a file.

        Raises:
            StoreError: the store refused.
        """
        with self._asking("find", ""):
            return bool(self.fs.exists(self.path))

    def names(self) -> list[str]:
        """Names of what lies directly in the folder; none when there is no such folder.

        Raises:
            StoreTimeoutError: the store did not answer.
            StoreError: the store refused.
        """
        with self._asking("list", ""):
            try:
                found = self._ls()
            except FileNotFoundError:
                return []
            return [path.rstrip("/").rpartition("/")[2] for path in found]

    def modified(self, name: str) -> datetime | None:
        """When the file was last written, by the store's clock; None when the store cannot say."""
        try:
            moment = self._modified(self.file(name))
        except Exception:
            return None
        if not isinstance(moment, datetime):
            return None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)

    def files(self) -> dict[str, int]:
        """Size in bytes of each file of the output, by its path in the folder; one listing.

        The cache's own dotted files beside the output are left out.
        """
        prefix = self.path.rstrip("/") + "/"
        listed = {path.removeprefix(prefix): info for path, info in self._find().items()}
        return {
            name: info["size"] or 0 for name, info in listed.items() if not name.startswith(".")
        }

    def _find(self) -> dict[str, Any]:
        from fsspec.asyn import sync

        found: dict[str, Any]
        if getattr(self.fs, "async_impl", False) and hasattr(self.fs, "_find"):
            # Some have a ``find`` of their own, which cannot be told when to give up.
            find, patience = self.fs._find, _PATIENCE_S
            found = sync(self.fs.loop, find, self.path, detail=True, timeout=patience)
        else:
            found = self.fs.find(self.path, detail=True)
        return found

    def _ls(self) -> list[str]:
        from fsspec.asyn import sync

        found: list[str]
        if getattr(self.fs, "async_impl", False) and hasattr(self.fs, "_ls"):
            # As in _find.
            listing, patience = self.fs._ls, _PATIENCE_S
            found = sync(self.fs.loop, listing, self.path, detail=False, timeout=patience)
        else:
            found = self.fs.ls(self.path, detail=False)
        return found

    def _write_local(self, path: str, data: bytes) -> None:
        # Beside the target, so that the rename stays within one file system; dotted, so that no
        # reader of the output takes it for data.
        temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                file.write(data)
            os.replace(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise

    def _modified(self, path: str) -> Any:
        patience = self._patience("info")
        if not patience:
            return self.fs.modified(path)
        # Their own ``modified`` cannot be told when to give up.
        info = self.fs.info(path, **patience)
        names = ("LastModified", "last_modified", "mtime")
        return next((info[name] for name in names if info.get(name)), None)

    def _patience(self, method: str) -> dict[str, float]:
        # fsspec takes it for every coroutine that it runs for a caller without an event loop. Those
        # methods it puts on the object; one that its class has itself would not know the argument.
        waits = getattr(self.fs, "async_impl", False) and method in vars(self.fs)
        return {"timeout": _PATIENCE_S} if waits else {}

    def _asking(self, verb: str, name: str) -> AbstractContextManager[None]:
        return asking(verb, join(self.url, name) if name else self.url)


_networked_in: int | None = None
"""The process that first used a filesystem with network threads, if any did."""


def _check_not_forked(url: str) -> None:
    """Network threads stay with the parent of a fork; in the child, calls would hang for ever."""
    global _networked_in
    if _networked_in is None:
        _networked_in = os.getpid()
    elif _networked_in != os.getpid():
        raise StoreError(
            f"{url}: this process was forked from one that uses such a store already. Start "
            "processes that use the cache with the method 'spawn' or 'forkserver'."
        )
