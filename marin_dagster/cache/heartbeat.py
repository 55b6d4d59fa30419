"""One thread that starts the renewal of every lease of this process."""

import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from marin_dagster.cache.lease import LeaseTiming, Lock
from marin_dagster.errors import LeaseLostError, StoreTimeoutError

logger = logging.getLogger(__name__)

_FIRST_RETRY_S = 1.0


@dataclass(eq=False)
class HeldLease:
    """A lease that this process holds, renewed in the background until released."""

    lock: Lock
    worker_id: str
    timing: LeaseTiming
    lost: LeaseLostError | None = None
    """Set once another worker holds it."""
    _dropped: bool = False
    _away: tuple[float, StoreTimeoutError] | None = None
    """When the last renewal timed out, and its error."""
    _due: float = 0.0
    """When to renew next; infinite during a renewal, and once the lease is lost."""
    _retry_s: float = _FIRST_RETRY_S
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Renew the lease, to make sure that it is still this worker's.

        Raises:
            LeaseLostError: it is not.
            StoreTimeoutError: the store did not answer this renewal, or the one that it waited for.
            StoreError: the store refused.
        """
        asked = time.monotonic()
        with self._mutex:
            if self._away is not None and self._away[0] > asked:
                raise self._away[1]
            self._check()

    def release(self) -> None:
        """Stop renewing and release the lease; another worker's lock stays.

        Raises:
            StoreError: the store refused; the lease expires.
        """
        self.drop()
        with self._mutex:
            self.lock.release(self.worker_id)

    def drop(self) -> None:
        """Stop renewing and let the lease expire. Does not wait for a renewal in progress."""
        self._dropped = True
        keeper.drop(self)

    def renew(self, now: float) -> None:
        """Renew once and set when to do so again; called by the keeper."""
        try:
            with self._mutex:
                # A lease that was dropped meanwhile may have lost its lock: its step has ended.
                if not self._dropped:
                    self._check()
        except LeaseLostError as error:
            logger.error("%s", error)
            self._due = float("inf")
        except Exception as error:
            pause = min(self._retry_s, self.timing.refresh_s)
            logger.warning("could not renew a lease, next try in %.1f s: %s", pause, error)
            self._due = time.monotonic() + pause
            self._retry_s *= 2
        else:
            self._due = now + self.timing.refresh_s
            self._retry_s = _FIRST_RETRY_S

    def _check(self) -> None:
        if self.lost is None:
            try:
                self.lock.refresh(self.worker_id)
            except LeaseLostError as error:
                self.lost = error
            except StoreTimeoutError as error:
                self._away = time.monotonic(), error
                raise
        if self.lost is not None:
            raise self.lost


class LeaseKeeper:
    """Renews leases from one daemon thread, which exists only while there is a lease to renew.

    Each renewal runs in its own short-lived thread, so that a store that does not answer cannot
    delay the leases in other stores.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset to no lease and no thread."""
        self._changed = threading.Condition()
        self._held: set[HeldLease] = set()
        self._thread: threading.Thread | None = None

    def hold(self, lease: HeldLease) -> None:
        """Renew ``lease`` every ``refresh_s`` from now on.

        Raises:
            RuntimeError: this process can start no more threads; nothing is held.
        """
        with self._changed:
            if self._thread is None:
                # The thread waits for the mutex, then finds the lease.
                self._thread = _start("marin-lease-keeper", self._run)
            lease._due = time.monotonic() + lease.timing.refresh_s
            self._held.add(lease)
            self._changed.notify()

    def drop(self, lease: HeldLease) -> None:
        """Stop renewing ``lease``."""
        with self._changed:
            self._held.discard(lease)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._held:
                    self._thread = None
                    return
                lease = min(self._held, key=lambda held: held._due)
                pause = lease._due - time.monotonic()
                if pause > 0:
                    self._changed.wait(min(pause, threading.TIMEOUT_MAX))
                    continue
                lease._due = float("inf")
            try:
                _start("marin-lease-renewal", self._renew, lease)
            except RuntimeError:
                # The process is at its limit of threads.
                self._renew(lease)

    def _renew(self, lease: HeldLease) -> None:
        lease.renew(time.monotonic())
        with self._changed:
            self._changed.notify()


def _start(name: str, target: Callable[..., Any], *args: Any) -> threading.Thread:
    # In an empty context, so that its logs are not attributed to the step that started it.
    thread = threading.Thread(
        target=contextvars.Context().run, args=(target, *args), name=name, daemon=True
    )
    thread.start()
    return thread


keeper = LeaseKeeper()
"""The keeper of this process."""

# After a fork the thread and the leases stay with the parent; the child starts with none.
os.register_at_fork(after_in_child=keeper.forget)
