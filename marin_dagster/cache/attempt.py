"""``Hit`` and ``Attempt``: the two outcomes of beginning a step.

An attempt ends exactly once. As in Marin, the order is: status RUNNING, the function, the record,
SUCCESS, and last the release of the lease.
"""

import logging
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from marin_dagster.cache.drift import Drift
from marin_dagster.cache.heartbeat import HeldLease
from marin_dagster.cache.lease import Lease
from marin_dagster.cache.provenance import Provenance, RunIdentity, launch_provenance
from marin_dagster.cache.record import (
    RECORD_FILE,
    ArtifactRecord,
    read_record,
    restate_provenance,
    step_record,
    write_record,
)
from marin_dagster.cache.status import Status, read_status, write_status
from marin_dagster.cache.store import OutputDir
from marin_dagster.errors import LeaseLostError, RecordError, StoreError, StoreTimeoutError
from marin_dagster.steps.protocol import StepLike, address

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hit:
    """A finished output, served from the cache."""

    step: StepLike
    folder: OutputDir
    drift: Drift | None = None
    """Set when it was built by another recipe."""

    @property
    def record(self) -> ArtifactRecord | None:
        """The output's record, read from the store each time; None when it has none.

        Raises:
            RecordError: there is one, but it cannot be read.
        """
        return read_record(self.folder)


@dataclass(eq=False)
class Attempt:
    """One attempt to build an output: lease held and renewed, status RUNNING.

    The status of an output that is finished already stays SUCCESS until :meth:`withdraw`.

    It ends exactly once, by :meth:`commit` or :meth:`fail`. Call :meth:`fail` on every way out:
    once the attempt has ended, it does nothing. Another thread may end it.
    """

    step: StepLike
    folder: OutputDir
    previous: Status | None = None
    """The status before this attempt; None without a valid one."""
    previous_at: datetime | None = None
    """When that was written, unless it was SUCCESS; None when the store does not know."""
    left_by: Lease | None = None
    """The expired lease of the previous worker."""
    begun_before: bool = False
    """An earlier attempt has begun this output."""
    run: RunIdentity | None = None
    """The Dagster run that this attempt belongs to."""
    result: Any = None
    """What the function returned, when it ran in this process."""
    stands: bool = False
    """The output was finished before, and this attempt has not touched it yet."""
    has_record: bool = False
    """The job has written the record already."""
    scaffold: tuple[str, ...] = ()
    """Files beside the output to remove once it is finished."""
    _lease: HeldLease = field(kw_only=True)
    _started: float = field(default_factory=time.monotonic)
    _mutex: threading.RLock = field(default_factory=threading.RLock)
    _ended: bool = False
    _committed: bool = False

    @property
    def worker_id(self) -> str:
        """The attempt's id in the lock file."""
        return self._lease.worker_id

    @property
    def id(self) -> str:
        """8 hex digits, unique to this attempt."""
        return self.worker_id[-8:]

    @property
    def provenance(self) -> Provenance:
        """The provenance for the record."""
        launch = launch_provenance()
        return launch if self.run is None else launch.in_run(self.run)

    @property
    def lost(self) -> LeaseLostError | None:
        """Set once another worker holds the lease."""
        return self._lease.lost

    @property
    def duration_s(self) -> float:
        """Seconds since the attempt began."""
        return time.monotonic() - self._started

    @property
    def cut_off(self) -> bool:
        """The output was finished before, and this attempt has left it unfinished."""
        rebuilding = self.previous is Status.SUCCESS and not self.stands
        return rebuilding and not self._committed and self.lost is None

    def withdraw(self) -> None:
        """Change the status of a finished output from SUCCESS to RUNNING, as the function begins.

        Until then the output stays finished, so an attempt that ends earlier leaves it intact.

        Raises:
            LeaseLostError: another worker took over, or the attempt has ended; nothing is written.
            StoreError: the store refused.
        """
        with self._mutex:
            self._require_open()
            if self.stands:
                self._lease.check()
                write_status(self.folder, Status.RUNNING)
                self.stands = False

    def still_stands(self) -> bool:
        """Whether the earlier, finished output is still untouched. A job elsewhere withdraws it,
        so this reads the status.

        Raises:
            StoreError: the store refused.
        """
        if self.stands:
            self.stands = read_status(self.folder) is Status.SUCCESS
        return self.stands

    def commit(self) -> ArtifactRecord:
        """Finish: write the record, check the lease, write SUCCESS.

        Returns:
            The record, written here or by the function.

        Raises:
            LeaseLostError: another worker took over; neither its lock nor its status is touched.
            ResultError: a record cannot hold the result.
            RecordError: the function should have written a record, but it is missing or
                unreadable.
            StoreTimeoutError: the store did not answer in time; see :meth:`leave`.
            StoreError: the store refused.

        After any error but StoreTimeoutError, the attempt has failed.
        """
        with self._mutex:
            self._require_open()
            try:
                written = self.has_record or self.step.writes_record
                record = None
                if not written:
                    record = step_record(self.step, self.result, self.provenance)
                # Before the record, too: a new owner may have written one.
                self._lease.check()
                self.withdraw()
                if record is not None:
                    write_record(self.folder, record)
                else:
                    record = self._own_record()
                self._lease.check()
                write_status(self.folder, Status.SUCCESS)
                self._committed = True
                self._remove_scaffold()
            except StoreTimeoutError as error:
                self.leave(error)
                raise
            except BaseException:
                self.fail()
                raise
            self.give_back()
            return record

    def _require_open(self) -> None:
        if self._ended:
            raise LeaseLostError(
                f"step {address(self.step)}: this attempt has already ended; its output "
                f"{self.folder.url} is not marked as finished."
            )

    def _remove_scaffold(self) -> None:
        for name in self.scaffold:
            try:
                self.folder.delete(name)
            except StoreError:
                # The output is finished; leftover files do no harm.
                logger.exception("could not remove %s of %s", name, self.folder.url)

    def _own_record(self) -> ArtifactRecord:
        record = read_record(self.folder)
        if record is None:
            raise RecordError(
                f"step {address(self.step)} sets writes_record but left no {RECORD_FILE} "
                f"in {self.folder.url}. Write it in the step's function."
            )
        return restate_provenance(self.folder, record, self.run)

    def fail(self) -> None:
        """Mark the attempt as failed and release the lease, unless it has ended already. An output
        that was finished before and is untouched stays finished.

        A broken store raises nothing: the status then stays RUNNING, without a lease or with one
        that expires, and the next worker takes over.
        """
        with self._mutex:
            if self._ended:
                return
            try:
                self._lease.check()
                if not self.still_stands():
                    write_status(self.folder, Status.FAILED)
            except StoreTimeoutError as error:
                self.leave(error)
                return
            except LeaseLostError as error:
                logger.error("step %s: %s", address(self.step), error)
            except Exception:
                logger.exception("could not mark %s as failed", self.folder.url)
            except BaseException:
                self.give_back()
                raise
            self.give_back()

    def give_back(self) -> None:
        """Release the lease and end the attempt; the status stays as it is."""
        self._ended = True
        try:
            self._lease.release()
        except Exception:
            logger.exception("could not release the lease on %s; it will expire", self.folder.url)

    def leave(self, error: StoreTimeoutError) -> None:
        """End without another request to a store that timed out: each would wait as long again.

        The files stay as they are; the lease is no longer renewed and expires, and the next worker
        takes over.
        """
        self._ended = True
        self._lease.drop()
        logger.error("left %s as it is; its lease will expire: %s", self.folder.url, error)
