"""``Interrupt``: a way to stop the step that runs in another thread."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import dagster as dg


@dataclass(eq=False)
class Interrupt:
    """Stops one step: wakes what it waits for, and raises in its function."""

    _stop: threading.Event = field(default_factory=threading.Event)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _in_user_code: int | None = None
    _wakers: list[Callable[[], None]] = field(default_factory=list)

    def wait(self, seconds: float) -> None:
        """Wait, or stop waiting with ``DagsterExecutionInterruptedError`` when interrupted."""
        if self._stop.wait(seconds):
            raise dg.DagsterExecutionInterruptedError

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
        """Mark the time in which :meth:`set` may raise into this thread.

        No cache operation happens in it, so an interrupt leaves no lease or file half-written.
        """
        self.check()
        with self._mutex:
            self._in_user_code = threading.get_ident()
        try:
            yield
        finally:
            with self._mutex:
                thread, self._in_user_code = self._in_user_code, None
            if self._stop.is_set() and thread is not None:
                # Cancel an exception that is still pending: it must not be raised later, outside
                # user code.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)
        self.check()

    def set(self) -> None:
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
