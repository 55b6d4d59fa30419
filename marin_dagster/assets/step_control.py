"""``StepControl``: an executor's settings for the step that runs in the current context.

Our executor sets one for each step; under any other executor a step runs with the defaults. It is
also the executor's handle on the step: its open attempts, and a way to interrupt its function.
"""

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import dagster as dg

from marin_dagster.assets.build_history import BuildHistory
from marin_dagster.cache import Attempt, DriftLog
from marin_dagster.runners import INLINE_PLACEMENT, Placement, Runner


@dataclass(eq=False)
class StepControl:
    """One step's run, as its executor sees it."""

    force: bool = False
    """Build even when the output is finished."""
    retry_failed: bool = True
    """Build again when the last attempt failed."""
    hit_expected: bool = False
    """The look-up found the output finished, and its inputs were pruned: serve it or fail."""
    attempts: list[Attempt] = field(default_factory=list)
    """Attempts that the step began; at the end the executor fails those still open."""
    captured: Callable[[], AbstractContextManager[None]] = nullcontext
    """Makes a context in which stdout and stderr go to the step's log."""
    log_levels: Mapping[str, int] = field(default_factory=dict)
    """The lowest level of Python's loggers in the step's job, by name."""
    place: Placement = INLINE_PLACEMENT
    """Where the step runs."""
    runners: Mapping[str, Runner] = field(default_factory=dict)
    """Every runner of the run, by name."""
    from_script: bool = False
    """Whether the run's process is the user's script."""
    failures: list[BaseException] | None = None
    """Collects the exceptions of the step's attempt, for callers that need the objects."""
    history: BuildHistory | None = None
    """Earlier builds of the run's steps; None when each step reads its own."""
    drifts: DriftLog = field(default_factory=DriftLog)
    """Warns of drifted outputs, once in a run."""
    event_loop: asyncio.AbstractEventLoop | None = None
    """The step's own loop, closed at the end."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _in_user_code: int | None = None
    _wakers: list[Callable[[], None]] = field(default_factory=list)

    def wait(self, seconds: float) -> None:
        """Wait, or stop waiting with ``DagsterExecutionInterruptedError`` when interrupted."""
        if self._stop.wait(seconds):
            raise dg.DagsterExecutionInterruptedError

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Add what the body raises to :attr:`failures`; Dagster keeps only its text."""
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            if self.failures is not None and error not in self.failures:
                self.failures.append(error)
            raise

    def check(self) -> None:
        """Raise ``DagsterExecutionInterruptedError`` when interrupted."""
        self.wait(0)

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake`` when the step is interrupted, at once if it already is."""
        with self._mutex:
            self._wakers.append(wake)
            stopped = self._stop.is_set()
        if stopped:
            wake()
        try:
            yield
        finally:
            with self._mutex:
                self._wakers.remove(wake)

    @contextmanager
    def user_code(self) -> Iterator[None]:
        """Mark the time in which :meth:`interrupt` may raise into this thread.

        No cache operation happens in it, so an interrupt leaves no lease or file half-written.
        """
        self.check()
        with self._mutex:
            self._in_user_code = threading.get_ident()
        try:
            with self.captured():
                yield
        finally:
            with self._mutex:
                thread, self._in_user_code = self._in_user_code, None
            if self._stop.is_set() and thread is not None:
                # Cancel an exception that is still pending: it must not be raised later, outside
                # user code.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)
        self.check()

    def interrupt(self) -> None:
        """Stop the step: raise ``DagsterExecutionInterruptedError`` in its function, once.

        A function that is in C code raises when it returns to Python.
        """
        with self._mutex:
            if self._stop.is_set():
                return
            self._stop.set()
            for wake in self._wakers:
                wake()
            if self._in_user_code is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._in_user_code),
                    ctypes.py_object(dg.DagsterExecutionInterruptedError),
                )


step_control: contextvars.ContextVar[StepControl | None] = contextvars.ContextVar(
    "marin_dagster_step_control", default=None
)
"""The control of the step that runs in this context; None under other executors."""
