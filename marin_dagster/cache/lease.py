"""The lock file ``.executor_status.lock``: a lease that its holder renews.

The file is Marin's: JSON with exactly ``worker_id`` and ``timestamp``. On local disk every change
happens under ``flock`` on the file itself, as Marin does; ``object_lock`` does the same in buckets
with conditional puts; elsewhere a worker writes, waits until writes have settled, and reads back
which worker won.
"""

import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from marin_dagster.cache.store import OutputDir
from marin_dagster.cache.worker_ids import is_certainly_dead
from marin_dagster.errors import LeaseLostError, StoreError

LOCK_FILE = ".executor_status.lock"


@dataclass(frozen=True)
class LeaseTiming:
    """How long leases live. Every worker on a store must agree; the defaults are Marin's."""

    refresh_s: float = 30.0
    """Seconds between renewals by the holder."""
    stale_s: float = 90.0
    """Seconds without renewal after which others may take over."""
    settle_s: float = 0.1
    """Seconds between writing and reading back on stores without conditional writes."""
    poll_s: float = 1.0
    """Seconds between looks while another worker holds the lease."""


@dataclass(frozen=True)
class Lease:
    """The content of a lock file."""

    worker_id: str
    """Its holder."""
    timestamp: float
    """When it was last renewed, in seconds since the epoch by the holder's clock."""


_UNREADABLE = Lease("an unreadable lock file", timestamp=float("inf"))


def new_lease(worker_id: str) -> Lease:
    """A lease renewed now."""
    return Lease(worker_id, time.time())


def parse_lease(content: bytes | None) -> Lease | None:
    """The lease in a lock file; None without one, or in an empty file, as in Marin.

    Unreadable content is treated as the lease of an unknown worker until it has been unchanged for
    ``stale_s``: a foreign file must neither block workers for ever nor be overwritten at once.
    """
    if not content or not content.strip():
        return None
    try:
        fields = json.loads(content)
        lease = Lease(worker_id=str(fields["worker_id"]), timestamp=float(fields["timestamp"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return _UNREADABLE
    return lease if math.isfinite(lease.timestamp) else _UNREADABLE


def format_lease(lease: Lease) -> bytes:
    """The lock file's content, with exactly the keys that Marin's reader accepts."""
    return json.dumps({"worker_id": lease.worker_id, "timestamp": lease.timestamp}).encode()


@dataclass
class LeaseWatch:
    """One reader's view of another worker's lease, to distinguish a live holder from a dead one.

    A lease is stale when its timestamp is older than ``stale_s``, as in Marin, unless this reader
    has seen it renewed in that time (the clocks differ). A timestamp from the future is
    ignored: such a lease is stale once this reader has seen it unchanged for ``stale_s``.

    Unlike in Marin, the lease of a process of this machine that has certainly ended is stale at
    once.
    """

    timing: LeaseTiming
    _seen: Lease | None = None
    _seen_at: float = field(default_factory=time.monotonic)
    _renewed: bool = False

    def is_live(self, lease: Lease | None) -> bool:
        """Whether ``lease``, just read, is held by a live worker."""
        now = time.monotonic()
        if lease != self._seen:
            same_holder = lease and self._seen and lease.worker_id == self._seen.worker_id
            self._renewed = bool(same_holder)
            self._seen, self._seen_at = lease, now
        if lease is None or now - self._seen_at > self.timing.stale_s:
            return False
        if is_certainly_dead(lease.worker_id):
            return False
        return self._renewed or time.time() - lease.timestamp <= self.timing.stale_s


class Lock(Protocol):
    """The lock file of one output on one kind of store."""

    def read(self) -> Lease | None:
        """The lease in the lock file, if any."""
        ...

    def acquire(self, worker_id: str, watch: LeaseWatch) -> bool:
        """Take the lock unless a live worker holds it."""
        ...

    def refresh(self, worker_id: str) -> None:
        """Renew the lease. Raises ``LeaseLostError`` when it is not this worker's any more."""
        ...

    def release(self, worker_id: str) -> None:
        """Remove the lock if it is this worker's; another worker's lock stays."""
        ...


@dataclass(frozen=True)
class LocalLock:
    """The lock file on local disk, changed under ``flock``."""

    folder: OutputDir
    settle_s: float = 0.0
    """Seconds to wait and read back after winning, where Marin writes without ``flock``."""

    @property
    def path(self) -> str:
        """Path of the lock file."""
        return self.folder.file(LOCK_FILE)

    def read(self) -> Lease | None:
        try:
            with self._refusals("read"), _locked(self.path, os.O_RDONLY, fcntl.LOCK_SH) as found:
                return _read_descriptor(found)
        except FileNotFoundError:
            return None

    def acquire(self, worker_id: str, watch: LeaseWatch) -> bool:
        self.folder.make()
        try:
            flags = os.O_RDWR | os.O_CREAT
            with self._refusals("lock"), self._exclusive(flags) as descriptor:
                if watch.is_live(_read_descriptor(descriptor)):
                    return False
                _write_descriptor(descriptor, new_lease(worker_id))
        except FileNotFoundError as error:
            raise StoreError(f"{self.path}: its folder was removed meanwhile") from error
        if not self.settle_s:
            return True
        time.sleep(self.settle_s)
        lease = self.read()
        return lease is not None and lease.worker_id == worker_id

    def refresh(self, worker_id: str) -> None:
        try:
            with self._refusals("lock"), self._exclusive(os.O_RDWR) as descriptor:
                require_own(_read_descriptor(descriptor), worker_id, self.path)
                _write_descriptor(descriptor, new_lease(worker_id))
        except FileNotFoundError:
            require_own(None, worker_id, self.path)

    def release(self, worker_id: str) -> None:
        try:
            with self._refusals("unlock"), self._exclusive(os.O_RDWR) as descriptor:
                lease = _read_descriptor(descriptor)
                if lease is not None and lease.worker_id == worker_id:
                    # The content stays in the removed file: a peer that was waiting for the flock
                    # finds a fresh lease in it and looks again, instead of locking a file that no
                    # longer has a name.
                    os.unlink(self.path)
        except FileNotFoundError:
            return

    @contextmanager
    def _refusals(self, verb: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StoreError(f"the store refused to {verb} {self.path}: {error}") from error

    @contextmanager
    def _exclusive(self, flags: int) -> Iterator[int]:
        while True:
            with _locked(self.path, flags, fcntl.LOCK_EX) as descriptor:
                # While this worker waited for the flock, the holder may have removed the file.
                if _is_at(descriptor, self.path):
                    yield descriptor
                    return


@dataclass(frozen=True)
class SettledLock:
    """The lock file on a store without conditional writes: write, settle, read back.

    Two workers that write within the settle time see the same winner; a store that takes longer
    than that to settle needs a longer ``settle_s``.
    """

    folder: OutputDir
    timing: LeaseTiming

    def read(self) -> Lease | None:
        return parse_lease(self.folder.read(LOCK_FILE))

    def acquire(self, worker_id: str, watch: LeaseWatch) -> bool:
        if watch.is_live(self.read()):
            return False
        self.folder.make()
        self._write(worker_id)
        time.sleep(self.timing.settle_s)
        lease = self.read()
        return lease is not None and lease.worker_id == worker_id

    def refresh(self, worker_id: str) -> None:
        require_own(self.read(), worker_id, self.folder.url)
        self._write(worker_id)

    def release(self, worker_id: str) -> None:
        lease = self.read()
        if lease is not None and lease.worker_id == worker_id:
            self.folder.delete(LOCK_FILE)

    def _write(self, worker_id: str) -> None:
        self.folder.write(LOCK_FILE, format_lease(new_lease(worker_id)))


def require_own(lease: Lease | None, worker_id: str, path: str) -> None:
    """Raise ``LeaseLostError`` unless the lease is this worker's."""
    if lease is None:
        raise LeaseLostError(
            f"lost the lease on {path}: the lock file of this worker, {worker_id}, is gone. Either "
            "another worker took the output over and finished, or something removed the folder."
        )
    if lease.worker_id != worker_id:
        raise LeaseLostError(
            f"lost the lease on {path}: it is held by {lease.worker_id}, this worker is "
            f"{worker_id}. Another worker took the output over; look at its result instead."
        )


@contextmanager
def _locked(path: str, flags: int, operation: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o666)
    try:
        fcntl.flock(descriptor, operation)
        try:
            yield descriptor
        finally:
            # Closing is not enough: a process forked meanwhile shares the lock until it is freed.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _read_descriptor(descriptor: int) -> Lease | None:
    return parse_lease(os.pread(descriptor, 4096, 0))


def _write_descriptor(descriptor: int, lease: Lease) -> None:
    # Over the old content, then cut: truncating first would leave no lock at all on a full disk.
    data = format_lease(lease)
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))
