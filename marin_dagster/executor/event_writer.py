"""``EventWriter``: one thread that stores a run's events, several at a time.

Dagster's handler stores each event in the thread that logs it, under one lock. With several steps
at once, their threads queue for the lock at every event, and on a busy machine they spend most of
the time there. Here a thread hands its event over and waits at most until it is stored, together
with whatever the other threads have logged meanwhile.
"""

import contextvars
import itertools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import dagster as dg

from marin_dagster._compat import get_log_record_metadata

_LATEST_S = 0.05
"""An event that nobody waits for is stored at most this many seconds after it was logged."""

_NOT_AWAITED = frozenset(
    {
        dg.DagsterEventType.STEP_START,
        dg.DagsterEventType.STEP_RESTARTED,
        dg.DagsterEventType.STEP_OUTPUT,
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        dg.DagsterEventType.HANDLED_OUTPUT,
        dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    }
)
"""Events of our steps that precede the step's next one at once, which is stored with them. Others,
lines of the log among them, are stored when the call returns."""

_together: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "marin_dagster_events_together", default=False
)


@dataclass(eq=False)
class _Logged:
    """One record of Dagster's log, on its way to the storage."""

    number: int
    record: logging.LogRecord | None
    """None for a thread that only waits."""
    stored: threading.Event | None = None
    """Set when it is stored or has failed; None when nobody waits."""
    error: BaseException | None = None

    @property
    def step_key(self) -> str | None:
        """The step that logged it."""
        return None if self.record is None else get_log_record_metadata(self.record)["step_key"]


@dataclass(eq=False)
class EventWriter:
    """Stores the events of one run in a thread of its own.

    The order of a step's events is kept. An event is stored before the call that logs it returns,
    except for those that a step's next event follows at once: these are stored with it, after at
    most 50 ms. Where the storage fails, the call raises what Dagster's handler would raise.
    """

    instance: dg.DagsterInstance
    handler: logging.Handler
    """Dagster's handler, which stores one event."""
    steps: Collection[str]
    """Keys of the steps that are ours: of other steps each event is awaited."""
    _queue: "queue.SimpleQueue[_Logged | None]" = field(default_factory=queue.SimpleQueue)
    """What somebody waits for; None wakes the thread."""
    _not_awaited: "queue.SimpleQueue[_Logged]" = field(default_factory=queue.SimpleQueue)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _last: dict[str | None, int] = field(default_factory=dict)
    """The number of each step's last event that nobody waits for and that is not stored."""
    _failed: dict[str | None, BaseException] = field(default_factory=dict)
    """What storing such an event raised; the step's next event raises it."""
    _is_awake: bool = False
    _closed: bool = False
    _thread: threading.Thread | None = None
    _pid: int = field(default_factory=os.getpid)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._work, name="marin-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Store what was logged, and end the thread."""
        self._closed = True
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def log(self, record: logging.LogRecord) -> None:
        """Store a record of Dagster's log; called in the thread that logs it.

        Raises:
            Exception: what the storage raised, for this event or one before it of the same step.
        """
        if self._closed or os.getpid() != self._pid:
            # Logged by a step that was left behind, or by a process that a step has forked.
            self.handler.emit(record)
            return
        logged = _Logged(next(self._numbers), record)
        if _together.get() or self._follows_at_once(record):
            # Only calls that cannot be interrupted half-way: a step's thread may be interrupted.
            self._last[logged.step_key] = logged.number
            self._not_awaited.put(logged)
            if not self._is_awake:
                self._is_awake = True
                self._queue.put(None)
        else:
            self._wait(logged, logged.step_key)

    def wait(self, step_key: str | None) -> None:
        """Wait until everything that a step has logged is stored.

        Raises:
            Exception: as :meth:`log`.
        """
        if step_key in self._last or step_key in self._failed:
            self._wait(_Logged(next(self._numbers), None), step_key)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Store what the body logs together, before this returns."""
        token = _together.set(True)
        try:
            yield
        finally:
            _together.reset(token)
            for step_key in [*self._last, *self._failed]:
                self.wait(step_key)

    def _follows_at_once(self, record: logging.LogRecord) -> bool:
        metadata = get_log_record_metadata(record)
        event = metadata["dagster_event"]
        return (
            event is not None
            and event.event_type in _NOT_AWAITED
            and metadata["step_key"] in self.steps
        )

    def _wait(self, logged: _Logged, step_key: str | None) -> None:
        logged.stored = threading.Event()
        self._queue.put(logged)
        while not logged.stored.wait(1.0):
            if self._thread is None or not self._thread.is_alive():
                self._store([logged])
        error = logged.error or self._failed.pop(step_key, None)
        if error is not None:
            raise error

    def _work(self) -> None:
        until: float | None = None
        while True:
            awaited: list[_Logged] = []
            try:
                left = None if until is None else max(0.0, until - time.monotonic())
                item = self._queue.get(timeout=left)
                while True:
                    if item is not None:
                        awaited.append(item)
                    item = self._queue.get_nowait()
            except queue.Empty:
                pass
            if not awaited and not self._closed:
                now = time.monotonic()
                until = now + _LATEST_S if until is None else until
                if now < until:
                    continue
            until, self._is_awake = None, False
            self._store([*self._drained(), *awaited])
            if self._closed and self._queue.empty():
                return

    def _drained(self) -> Iterator[_Logged]:
        # Whoever waits has put its earlier events here before.
        while True:
            try:
                yield self._not_awaited.get_nowait()
            except queue.Empty:
                return

    def _store(self, batch: list[_Logged]) -> None:
        # It imports SQLAlchemy, which takes longer than all of this package.
        from marin_dagster.executor.event_batches import store_batch

        batch.sort(key=lambda logged: logged.number)
        records = {logged: logged.record for logged in batch if logged.record is not None}
        try:
            errors = store_batch(self.instance, self.handler, list(records.values()))
        except BaseException as error:  # nobody may wait for ever
            errors = [error] * len(records)
        for logged, failure in zip(records, errors, strict=True):
            logged.error = failure
        for logged in batch:
            if logged.stored is not None:
                logged.stored.set()
                continue
            step_key = logged.step_key
            if logged.error is not None:
                self._failed.setdefault(step_key, logged.error)
            if self._last.get(step_key) == logged.number:
                self._last.pop(step_key, None)


class WriterHandler(logging.Handler):
    """Takes the place of Dagster's handler, without its lock."""

    def __init__(self, writer: EventWriter) -> None:
        super().__init__(writer.handler.level)
        self._log: Callable[[logging.LogRecord], None] = writer.log

    def createLock(self) -> None:
        """No lock: a thread that waits must not keep the others from logging."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Store the record."""
        self._log(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Store the record."""
        self._log(record)
