"""Which lock an output gets, by what its store can do."""

from marin_dagster.cache import object_lock
from marin_dagster.cache.lease import LeaseTiming, LocalLock, Lock, SettledLock
from marin_dagster.cache.store import OutputDir


def lock_for(folder: OutputDir, timing: LeaseTiming) -> Lock:
    """``flock`` on local disk, conditional puts in buckets, write-settle-read elsewhere."""
    if folder.is_local:
        # Marin takes a file:// URL for any other store, and does not use flock there.
        return LocalLock(folder, settle_s=timing.settle_s if "://" in folder.url else 0.0)
    if object_lock.serves(folder.fs):
        return object_lock.ObjectLock(folder)
    return SettledLock(folder, timing)
