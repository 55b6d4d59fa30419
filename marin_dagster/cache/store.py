"""Small files of the cache on any fsspec filesystem: whole reads, whole writes, no caches.

The one place that opens a filesystem. ``use_listings_cache=False`` and whole-object reads make
another process's write visible at once (fsspec/s3fs#851). fsspec itself is imported when a folder
is opened: it takes half of this package's import time, and defining a graph does not need it.
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
"""The extra of this package that installs the filesystem of a scheme."""

_PATIENCE_S = 90.0
"""Time limit for one file of a network filesystem, including the client's retries. Without it, s3fs
would wait for more than six minutes on a store that hangs, gcsfs for ever."""

_AWAY_S = 10.0
"""An error that comes later than this is a timeout: the client has retried all that time."""


@contextmanager
def asking(verb: str, where: str) -> Iterator[None]:
    """One request to the store, such as to read ``where``.

    Raises:
        StoreTimeoutError: it did not answer in time.
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
            f"the store did not {verb} {where}: it did not answer in {_PATIENCE_S:g} s"
        ) from error
    except Exception as error:
        # Not only OSError: each filesystem's client has its own network errors.
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
        """Whether the folder is on a local file system."""
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
        """Remove the file; a missing file is not an error.

        Raises:
            StoreTimeoutError: the store did not answer; it may or may not have removed the file.
            StoreError: the store refused.
        """
        with self._asking("delete", name), suppress(FileNotFoundError):
            self.fs.rm_file(self.file(name), **self._patience("rm_file"))

    def make(self) -> None:
        """Create the folder and its parents."""
        with self._asking("create", ""):
            self.fs.makedirs(self.path, exist_ok=True)

    def exists(self) -> bool:
        """Whether a folder or a file exists at the path.

        Raises:
            StoreError: the store refused.
        """
        with self._asking("find", ""):
            return bool(self.fs.exists(self.path))

    def names(self) -> list[str]:
        """Names of the files and folders directly in the folder; empty when it does not exist.

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

    def entries(self) -> tuple[list[str], list[str]]:
        """Names of the files and of the folders directly in the folder, without symbolic links to
        folders; both empty when it does not exist.

        Raises:
            StoreTimeoutError: the store did not answer.
            StoreError: the store refused.
        """
        files: list[str] = []
        folders: list[str] = []
        with self._asking("list", ""):
            try:
                found = self._ls(detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return files, folders
            for entry in found:
                name = entry["name"].rstrip("/").rpartition("/")[2]
                if entry["type"] != "directory":
                    files.append(name)
                elif not entry.get("islink") and name:
                    folders.append(name)
        return files, folders

    def modified(self, name: str) -> datetime | None:
        """When the file was last written, by the store's clock; None if it does not know."""
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
            # Some filesystems override ``find`` without a timeout.
            find, patience = self.fs._find, _PATIENCE_S
            found = sync(self.fs.loop, find, self.path, detail=True, timeout=patience)
        else:
            found = self.fs.find(self.path, detail=True)
        return found

    def _ls(self, *, detail: bool = False) -> list[Any]:
        from fsspec.asyn import sync

        found: list[Any]
        if getattr(self.fs, "async_impl", False) and hasattr(self.fs, "_ls"):
            # As in _find.
            listing, patience = self.fs._ls, _PATIENCE_S
            found = sync(self.fs.loop, listing, self.path, detail=detail, timeout=patience)
        else:
            found = self.fs.ls(self.path, detail=detail)
        return found

    def _write_local(self, path: str, data: bytes) -> None:
        # Beside the target, so that the rename stays within one file system; with a leading dot, so
        # that readers of the output skip it.
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
        # ``modified`` of these filesystems takes no timeout.
        info = self.fs.info(path, **patience)
        names = ("LastModified", "last_modified", "mtime")
        return next((info[name] for name in names if info.get(name)), None)

    def _patience(self, method: str) -> dict[str, float]:
        # fsspec accepts a timeout in the synchronous methods that it generates from coroutines and
        # sets on the object. A method that the class itself defines would not accept it.
        waits = getattr(self.fs, "async_impl", False) and method in vars(self.fs)
        return {"timeout": _PATIENCE_S} if waits else {}

    def _asking(self, verb: str, name: str) -> AbstractContextManager[None]:
        return asking(verb, join(self.url, name) if name else self.url)


_networked_in: int | None = None
"""The process that first used a filesystem with network threads, if any did."""


def _check_not_forked(url: str) -> None:
    """A fork does not copy network threads, so calls in the child would hang for ever."""
    global _networked_in
    if _networked_in is None:
        _networked_in = os.getpid()
    elif _networked_in != os.getpid():
        raise StoreError(
            f"{url}: this process was forked from one that uses such a store already. Start "
            "processes that use the cache with the method 'spawn' or 'forkserver'."
        )
