"""One thread that has every lease of this process renewed."""

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
    """Set once another worker was seen to hold it."""
    _dropped: bool = False
    _away: tuple[float, StoreTimeoutError] | None = None
    """When the last renewal without an answer ended, and its error."""
    _due: float = 0.0
    """When to renew next; infinite while that is under way, and once it is lost."""
    _retry_s: float = _FIRST_RETRY_S
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Make sure that the lease is still this worker's, by renewing it.

        Raises:
            LeaseLostError: it is not.
            StoreTimeoutError: the store does not answer, to this or to the renewal under way.
            StoreError: the store refused.
        """
        asked = time.monotonic()
        with self._mutex:
            if self._away is not None and self._away[0] > asked:
                raise self._away[1]
            self._check()

    def release(self) -> None:
        """Stop renewing and give the lease back; a foreign lock stays.

        Raises:
            StoreError: the store refused; the lease runs out.
        """
        self.drop()
        with self._mutex:
            self.lock.release(self.worker_id)

    def drop(self) -> None:
        """Stop renewing and let the lease run out. Does not wait for a renewal under way."""
        self._dropped = True
        keeper.drop(self)

    def renew(self, now: float) -> None:
        """Renew once and set when to do so again; called by the keeper."""
        try:
            with self._mutex:
                # Dropped since the keeper chose it: what is gone is not lost.
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
    """Has leases renewed by one daemon thread, which lives only while there is one to renew.

    Each renewal has a short-lived thread of its own: a store that does not answer must not hold up
    the leases in others.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew, with no lease and no thread."""
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
                # It waits for the mutex, and finds the lease when it has it.
                self._thread = _start("marin-lease-keeper", self._run)
            lease._due = time.monotonic() + lease.timing.refresh_s
            self._held.add(lease)
            self._changed.notify()

    def drop(self, lease: HeldLease) -> None:
        """Renew ``lease`` no more."""
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
                # This process may have no more threads.
                self._renew(lease)

    def _renew(self, lease: HeldLease) -> None:
        lease.renew(time.monotonic())
        with self._changed:
            self._changed.notify()


def _start(name: str, target: Callable[..., Any], *args: Any) -> threading.Thread:
    # In an empty context: what it logs is not of the step that happened to be first.
    thread = threading.Thread(
        target=contextvars.Context().run, args=(target, *args), name=name, daemon=True
    )
    thread.start()
    return thread


keeper = LeaseKeeper()
"""The keeper of this process."""

# After a fork the thread and the leases stay with the parent; the child starts with none.
os.register_at_fork(after_in_child=keeper.forget)
