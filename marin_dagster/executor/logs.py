"""Each step's ``stdout``, ``stderr`` and ``logging`` lines in its own compute log, while it runs.

Dagster's own capture redirects the descriptors of the process, which threads share. Here the
process's ``sys.stdout`` and ``sys.stderr`` become routers for as long as any step runs: what is
written in a step's context goes to that step's log as well as to where it always went. Threads
that a step starts inherit its context. Output that does not pass through Python (C libraries, child
processes) goes to the process's descriptors only.
"""

import contextvars
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

from marin_dagster._compat import (
    CapturedLogContext,
    ComputeIOType,
    DagsterEvent,
    StepExecutionContext,
)


class _StepLog:
    """The compute log of one step, opened and announced when the step first writes.

    Most steps of most runs write nothing, and an event costs more than all else that we do.
    """

    def __init__(
        self, context: StepExecutionContext, announce: Callable[[DagsterEvent], None]
    ) -> None:
        self._context = context
        self._announce = announce
        self._mutex = threading.RLock()
        self._opened = ExitStack()
        self._streams: dict[str, IO[Any] | None] = {}
        self._closed = False

    def write(self, name: str, text: str) -> None:
        """Write to ``stdout`` or ``stderr``; a log that is broken or closed never breaks a step."""
        with self._mutex:
            # A thread that outlives its step has nowhere to write any more.
            if self._closed:
                return
            with suppress(ValueError, OSError):
                stream = self._open(name)
                if stream is None:
                    return
                try:
                    stream.write(text)
                except TypeError:
                    stream.write(text.encode("utf-8", "replace"))
                stream.flush()

    def close(self) -> None:
        """Close what was opened, which for some log managers uploads it."""
        with self._mutex:
            self._closed = True
            self._opened.close()

    def _open(self, name: str) -> IO[Any] | None:
        if not self._streams:
            manager = self._context.instance.compute_log_manager
            key = manager.build_log_key_for_run(self._context.run_id, self._context.step.key)
            for kind in (ComputeIOType.STDOUT, ComputeIOType.STDERR):
                stream = self._opened.enter_context(manager.open_log_stream(key, kind))
                self._streams[kind.value] = stream
            self._announce(
                DagsterEvent.capture_logs(
                    self._context, [self._context.step.key], key, CapturedLogContext(key)
                )
            )
        return self._streams[name]


_step_log: contextvars.ContextVar[_StepLog | None] = contextvars.ContextVar(
    "marin_dagster_step_log", default=None
)


@contextmanager
def captured_step_logs(
    context: StepExecutionContext, announce: Callable[[DagsterEvent], None]
) -> Iterator[None]:
    """Route what the current context writes into the step's compute log.

    Args:
        context: the step.
        announce: receives the event that tells Dagster where the log is, once there is one.
    """
    log = _StepLog(context, announce)
    _installation.enter()
    token = _step_log.set(log)
    try:
        yield
    finally:
        _step_log.reset(token)
        _installation.leave()
        log.close()


class _Router(io.TextIOBase):
    """Stands in for ``sys.stdout`` or ``sys.stderr``: writes there, and to the step's log."""

    def __init__(self, name: str, original: IO[str]) -> None:
        self.name = name
        self.original = original

    def write(self, text: str) -> int:
        """Write everywhere it belongs; a broken log or terminal never breaks the step."""
        if (log := _step_log.get()) is not None:
            log.write(self.name, text)
        with suppress(ValueError, OSError):
            self.original.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(ValueError, OSError):
            self.original.flush()

    def close(self) -> None:
        """Nothing: a step that closes its stdout must not close everybody's."""

    def fileno(self) -> int:
        return self.original.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self.original, "encoding", None) or "utf-8"

    @property
    def buffer(self) -> Any:
        """The original's buffer; bytes written to it do not reach the step's log."""
        return getattr(self.original, "buffer", None)


class _LogHandler(logging.Handler):
    """Sends ``logging`` lines of a step to its ``stderr`` log.

    Handlers that were made before the routers hold the original ``sys.stderr``, so their lines pass
    the routers by; one made after them writes through a router, and this one then stays silent.
    """

    def emit(self, record: logging.LogRecord) -> None:
        log = _step_log.get()
        if log is not None and not _reaches_router(record.name):
            log.write("stderr", self.format(record) + "\n")


def _reaches_router(name: str) -> bool:
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(isinstance(getattr(h, "stream", None), _Router) for h in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


class _Installation:
    """The routers, the log handler and the thread hook, in place while any step runs."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._users = 0
        self._undo: list[Callable[[], None]] = []

    def enter(self) -> None:
        with self._mutex:
            self._users += 1
            if self._users == 1:
                self._install()

    def leave(self) -> None:
        with self._mutex:
            self._users -= 1
            if self._users == 0:
                while self._undo:
                    self._undo.pop()()

    def _install(self) -> None:
        for name in ("stdout", "stderr"):
            router = _Router(name, getattr(sys, name))
            self._swap(sys, name, router)
        handler = _LogHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root = logging.getLogger()
        root.addHandler(handler)
        self._undo.append(lambda: root.removeHandler(handler))
        self._swap(threading.Thread, "start", _start_in_context(threading.Thread.start))

    def _swap(self, owner: Any, name: str, value: Any) -> None:
        old = getattr(owner, name)
        setattr(owner, name, value)

        def restore() -> None:
            # Somebody else may have put their own in its place meanwhile; leave that alone.
            if getattr(owner, name) is value:
                setattr(owner, name, old)

        self._undo.append(restore)


_installation = _Installation()


def _start_in_context(start: Callable[[threading.Thread], None]) -> Callable[..., None]:
    def start_in_context(thread: threading.Thread) -> None:
        if (log := _step_log.get()) is not None:
            run = thread.run

            def run_with_log() -> None:
                _step_log.set(log)
                run()

            thread.run = run_with_log  # type: ignore[method-assign]
        start(thread)

    return start_in_context
