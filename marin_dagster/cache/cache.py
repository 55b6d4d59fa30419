"""``StepCache``: whether an output is built, and the life of an attempt to build it.

::

    look_up(step) -> LookUp            reads only
    begin(step)   -> Hit               served from the cache
                   | Attempt           lease held, status RUNNING, or still SUCCESS
                        .withdraw()       RUNNING, when it was SUCCESS: the function begins
                        .commit(result)   record, lease checked, SUCCESS, lease released
                        .fail()           FAILED unless SUCCESS still stands, lease released;
                                          does nothing once the attempt has ended
    register(step, adopt)              begin, adopt and commit at once

The order of the files and their formats are Marin's, so both packages can serve, wait for and take
over each other's outputs.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from marin_dagster.cache.attempt import Attempt, Hit
from marin_dagster.cache.circuit_breaker import CircuitBreaker
from marin_dagster.cache.drift import Drift, DriftLog, find_drift
from marin_dagster.cache.heartbeat import HeldLease, keeper
from marin_dagster.cache.lease import Lease, LeaseTiming, LeaseWatch, Lock
from marin_dagster.cache.locks import lock_for
from marin_dagster.cache.parallel import map_parallel
from marin_dagster.cache.preconditions import check_dependencies, check_may_build
from marin_dagster.cache.provenance import RunIdentity
from marin_dagster.cache.record import write_info
from marin_dagster.cache.status import STATUS_FILE, Status, read_status, write_status
from marin_dagster.cache.store import OutputDir
from marin_dagster.cache.worker_ids import is_certainly_dead, new_worker_id
from marin_dagster.errors import (
    FingerprintMismatchError,
    MarinDagsterError,
    RecordError,
    StepError,
    StoreError,
    StoreTimeoutError,
)
from marin_dagster.steps.paths import check_step_path
from marin_dagster.steps.protocol import StepLike, address, is_mutable

logger = logging.getLogger(__name__)

_WAIT_LOG_INTERVAL_S = 60.0
_LAST_MOMENTS_S = 1.0
"""Seconds in which the processes of a killed worker end, too."""


class CacheState(Enum):
    """The result of a look-up."""

    HIT = "hit"
    """Finished, and would be served."""
    MISS = "miss"
    """Nothing, or the remains of an attempt whose worker is dead."""
    FAILED = "failed"
    """The last attempt failed."""
    RUNNING = "running"
    """A live worker is building it."""
    UNKNOWN = "unknown"
    """The look-up failed, or the output is not what its handle expects."""


@dataclass(frozen=True)
class LookUp:
    """What a look-up found of an output."""

    state: CacheState
    finished: bool = False
    """There is an output that dependents can read: a HIT, or a dev version."""
    owner: str | None = None
    """The worker that is building it, when RUNNING."""
    drift: Drift | None = None
    """Set on a HIT that was built by another recipe."""
    error: MarinDagsterError | None = None
    """Why the output cannot be used or built, when UNKNOWN."""
    status: Status | None = None
    """The status; None without a valid one."""
    left_by: Lease | None = None
    """The expired lease of a dead worker."""


@dataclass(frozen=True)
class StepCache:
    """Status, lease and record of outputs on any fsspec filesystem."""

    timing: LeaseTiming = field(default_factory=LeaseTiming)
    """How long leases live."""

    def look_up(self, step: StepLike) -> LookUp:
        """The state of a step's output in the store. Reads only.

        A dev version is never a hit.

        Raises:
            FingerprintMismatchError: it was built by another recipe than its handle expects.
            RecordError: the record of a lazy artifact cannot be read.
            StoreError: the store refused.
        """
        folder = OutputDir.at(step.output_path)
        match read_status(folder):
            case Status.SUCCESS if is_mutable(step):
                return LookUp(CacheState.MISS, finished=True, status=Status.SUCCESS)
            case Status.SUCCESS:
                drift = find_drift(step, folder)
                return LookUp(CacheState.HIT, finished=True, drift=drift, status=Status.SUCCESS)
            case Status.FAILED | Status.DEP_FAILED as status:
                return LookUp(CacheState.FAILED, status=status)
            case Status.RUNNING as status:
                lease = lock_for(folder, self.timing).read()
                if lease is not None and LeaseWatch(self.timing).is_live(lease):
                    return LookUp(CacheState.RUNNING, owner=lease.worker_id, status=status)
                return LookUp(CacheState.MISS, status=status, left_by=lease)
        return LookUp(CacheState.MISS)

    def look_up_many(self, steps: Iterable[StepLike]) -> dict[str, LookUp]:
        """:meth:`look_up` of many steps, 64 at a time, by output path.

        Where the store refuses, the step is UNKNOWN, and the look-ups of the others go on. Once one
        look-up in a bucket has timed out, the bucket's other steps are UNKNOWN, too.
        """
        breaker = CircuitBreaker()

        def look(step: StepLike) -> LookUp:
            try:
                with breaker.asking(step.output_path):
                    return self.look_up(step)
            except (StoreError, RecordError, FingerprintMismatchError) as error:
                return LookUp(CacheState.UNKNOWN, error=error)

        return map_parallel(look, {step.output_path: step for step in steps})

    def begin(
        self,
        step: StepLike,
        *,
        force: bool = False,
        retry_failed: bool = True,
        hit_expected: bool = False,
        run: RunIdentity | None = None,
        warn: Callable[[StepLike, Drift], Any] | None = None,
        wait: Callable[[float], Any] = time.sleep,
        log: Callable[[str], Any] = logger.info,
    ) -> Hit | Attempt:
        """Serve the step's output, or acquire its lease to build it.

        Waits while a live worker builds the output, then serves it. Takes over at once an output
        that is RUNNING without a live lease. Reads the status again once it has the lease. Writes
        nothing before all dependencies are finished; a finished output that is to be built again
        stays finished until :meth:`Attempt.withdraw`.

        Args:
            step: the step.
            force: build even when the output is finished.
            retry_failed: build again when the last attempt failed.
            hit_expected: the output was finished and its inputs were pruned; fail rather than build
                without them.
            run: the Dagster run, for the record.
            warn: receives the drift of an output that is served; logs a warning when None.
            wait: waits for some seconds; may raise to stop waiting for another worker.
            log: receives a message now and then about the worker that this waits for.

        Raises:
            StepNameError: the step's name or path cannot be a folder of a store.
            PreviousAttemptFailedError: the last attempt failed and ``retry_failed`` is off.
            StepWithoutFunctionError: nothing is cached and the step has no function.
            DependencyNotBuiltError: an output that the step reads is not finished.
            OutputVanishedError: ``hit_expected``, and it is not.
            FingerprintMismatchError: it, or an output that it reads, was built by another recipe
                than its handle expects.
            StoreError: the store refused.
        """
        check_step_path(step)
        folder = OutputDir.at(step.output_path)
        lock = lock_for(folder, self.timing)
        watch = LeaseWatch(self.timing)
        rebuild = force or is_mutable(step)
        warn = warn or DriftLog().warn
        logged_at = float("-inf")
        checked = False
        left_by: Lease | None = None
        while True:
            status = read_status(folder)
            if status is Status.SUCCESS and not rebuild:
                return _hit(step, folder, warn)
            check_may_build(step, status, retry_failed=retry_failed, hit_expected=hit_expected)
            if not checked:
                check_dependencies(step)
                checked = True
            lease = lock.read()
            if lease is not None and watch.is_live(lease):
                if time.monotonic() - logged_at > _WAIT_LOG_INTERVAL_S:
                    logged_at = time.monotonic()
                    log(
                        f"{address(step)}: waiting for {lease.worker_id}, which is building "
                        f"{folder.url}"
                    )
                wait(self.timing.poll_s)
                continue
            if lease is not None and lease != left_by and is_certainly_dead(lease.worker_id):
                # Its own processes die with it, but not in the same instant.
                left_by = lease
                wait(min(_LAST_MOMENTS_S, self.timing.poll_s))
                continue
            attempt = self._acquire(step, folder, lock, watch)
            if attempt is None:
                continue
            with _ending_on_error(attempt, attempt.fail):
                status = attempt.previous
                if status is Status.SUCCESS and not rebuild:
                    attempt.give_back()
                    return _hit(step, folder, warn)
                check_may_build(step, status, retry_failed=retry_failed, hit_expected=hit_expected)
                attempt.left_by, attempt.run = lease, run
                if status not in (None, Status.SUCCESS):
                    attempt.previous_at = folder.modified(STATUS_FILE)
                attempt.begun_before = not write_info(folder, step)
                if not attempt.stands:
                    write_status(folder, Status.RUNNING)
                return attempt

    def register(
        self,
        step: StepLike,
        adopt: Callable[[Attempt], Any],
        *,
        retry_failed: bool = True,
        run: RunIdentity | None = None,
        warn: Callable[[StepLike, Drift], Any] | None = None,
        wait: Callable[[float], Any] = time.sleep,
        log: Callable[[str], Any] = logger.info,
    ) -> None:
        """Write the record of adopted data, unless it is there already.

        Args:
            step: the step that adopts the data.
            adopt: runs the step's function and sets the attempt's ``result``.

        The other arguments are those of :meth:`begin`. Raises what :meth:`begin`, ``adopt`` and
        :meth:`Attempt.commit` raise.
        """
        outcome = self.begin(
            step, retry_failed=retry_failed, run=run, warn=warn, wait=wait, log=log
        )
        if isinstance(outcome, Attempt):
            try:
                adopt(outcome)
                outcome.commit()
            finally:
                outcome.fail()

    def _acquire(
        self, step: StepLike, folder: OutputDir, lock: Lock, watch: LeaseWatch
    ) -> Attempt | None:
        """An attempt that holds the lease and knows the status; None if another worker won."""
        worker_id = new_worker_id()
        if not lock.acquire(worker_id, watch):
            return None
        lease = HeldLease(lock, worker_id, self.timing)
        try:
            keeper.hold(lease)
        except BaseException:
            # Others would wait for a lease that nothing renews.
            lock.release(worker_id)
            raise
        attempt = Attempt(step, folder, _lease=lease)
        # Until the status is known, FAILED could replace the SUCCESS of another worker.
        with _ending_on_error(attempt, attempt.give_back):
            # Again, now that no other worker can change it.
            attempt.previous = read_status(folder)
            attempt.stands = attempt.previous is Status.SUCCESS
        return attempt


@contextmanager
def _ending_on_error(attempt: Attempt, end: Callable[[], None]) -> Iterator[None]:
    """End an attempt that the body could not begin.

    ``end`` ends it, except after a StepError or a StoreTimeoutError.
    """
    try:
        yield
    except StepError:
        attempt.give_back()
        raise
    except StoreTimeoutError as error:
        attempt.leave(error)
        raise
    except BaseException:
        end()
        raise


def _hit(step: StepLike, folder: OutputDir, warn: Callable[[StepLike, Drift], Any]) -> Hit:
    drift = find_drift(step, folder)
    if drift is not None:
        warn(step, drift)
    return Hit(step, folder, drift)
