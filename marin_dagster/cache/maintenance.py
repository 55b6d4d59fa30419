"""What people do to single outputs: see who holds the lease, remove it, call an output unfinished,
and mark data that nothing builds as complete."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from marin_dagster.cache.lease import Lease, LeaseTiming, LeaseWatch
from marin_dagster.cache.locks import lock_for
from marin_dagster.cache.status import STATUS_FILE, Status, read_status, write_status
from marin_dagster.cache.store import OutputDir
from marin_dagster.cache.worker_ids import new_worker_id
from marin_dagster.errors import LeaseLostError

_TIMING = LeaseTiming()


@dataclass(frozen=True)
class Holder:
    """The worker whose lease is in an output's lock file."""

    lease: Lease
    is_live: bool
    """Whether it may still be building; false once another worker may take over."""

    @property
    def age_s(self) -> float:
        """Seconds since it renewed the lease, by the clocks of both machines."""
        return max(0.0, time.time() - self.lease.timestamp)


def find_holder(folder: OutputDir, timing: LeaseTiming = _TIMING) -> Holder | None:
    """The holder of an output's lease; None without a lock file.

    Raises:
        StoreError: the store refused.
    """
    lease = lock_for(folder, timing).read()
    return None if lease is None else Holder(lease, LeaseWatch(timing).is_live(lease))


def unlock(folder: OutputDir, holder: Holder, timing: LeaseTiming = _TIMING) -> None:
    """Remove a lease. A live worker notices at its next renewal, and its attempt fails.

    Args:
        folder: the output.
        holder: whose lease to remove; another worker's stays.
        timing: how long leases live.

    Raises:
        StoreError: the store refused.
    """
    lock_for(folder, timing).release(holder.lease.worker_id)


def invalidate(folder: OutputDir, timing: LeaseTiming = _TIMING) -> bool:
    """Call an output unfinished, so that the next run that needs it builds it. Its files stay.

    Returns:
        Whether there was a status to remove.

    Raises:
        LeaseLostError: a live worker is building it; nothing has changed.
        StoreError: the store refused.
    """
    if read_status(folder) is None:
        return False
    with _holding(folder, timing):
        folder.delete(STATUS_FILE)
    return True


def mark_complete(folder: OutputDir, timing: LeaseTiming = _TIMING) -> bool:
    """Write SUCCESS beside data that no run builds.

    Returns:
        Whether it was not marked before.

    Raises:
        LeaseLostError: a live worker holds the lease; nothing has changed.
        StoreError: the store refused.
    """
    if read_status(folder) is Status.SUCCESS:
        return False
    with _holding(folder, timing):
        write_status(folder, Status.SUCCESS)
    return True


@contextmanager
def _holding(folder: OutputDir, timing: LeaseTiming) -> Iterator[None]:
    """Hold an output's lease for a moment, in which it needs no renewal."""
    lock, worker_id = lock_for(folder, timing), new_worker_id()
    if not lock.acquire(worker_id, LeaseWatch(timing)):
        lease = lock.read()
        owner = lease.worker_id if lease else "another worker"
        raise LeaseLostError(f"{folder.url} is being built by {owner}. Wait for it, or stop it.")
    try:
        yield
    finally:
        lock.release(worker_id)
