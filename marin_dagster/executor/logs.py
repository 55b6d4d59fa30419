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
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import IO, Any

import dagster as dg

from marin_dagster._compat import CapturedLogContext, DagsterEvent, StepExecutionContext
from marin_dagster.executor.log_streams import log_streams


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
        # Half of a surrogate pair has no UTF-8, and must not cost the line.
        text = text.encode("utf-8", "backslashreplace").decode()
        with self._mutex:
            # A thread that outlives its step has nowhere to write any more.
            if self._closed:
                return
            try:
                stream = self._open()[name]
                if stream is None:
                    return
                try:
                    stream.write(text)
                except TypeError:
                    stream.write(text.encode())
                stream.flush()
            except Exception:
                self._closed = True

    def close(self) -> None:
        """Close what was opened, which for some log managers uploads it."""
        with self._mutex:
            self._closed = True
            try:
                self._opened.close()
            except Exception as error:
                self._context.log.warning(f"could not close the step's compute log: {error}")

    def _open(self) -> dict[str, IO[Any] | None]:
        if not self._streams:
            context = self._context
            step_key, attempt = context.step.key, context.previous_attempt_count + 1
            manager = context.instance.compute_log_manager
            # A log of its own for each attempt: in cloud storage, the next would replace it.
            name = step_key if attempt == 1 else f"{step_key}-{attempt}"
            key = manager.build_log_key_for_run(context.run_id, name)
            # Making the event logs it, which is no output of the step; nor is what a manager logs.
            with _writing_to(None):
                self._streams = self._opened.enter_context(log_streams(manager, key))
                self._announce(
                    DagsterEvent.capture_logs(context, [step_key], key, CapturedLogContext(key))
                )
        return self._streams


_step_log: contextvars.ContextVar[_StepLog | None] = contextvars.ContextVar(
    "marin_dagster_step_log", default=None
)


@contextmanager
def _writing_to(log: _StepLog | None) -> Iterator[None]:
    token = _step_log.set(log)
    try:
        yield
    finally:
        _step_log.reset(token)


@contextmanager
def step_log(
    context: StepExecutionContext, announce: Callable[[DagsterEvent], None]
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """A compute log for a step.

    Args:
        context: the step.
        announce: receives the event that tells Dagster where the log is, once there is one.

    Yields:
        Makes a context in which what is written belongs to the log. It is for the user's code:
        what Dagster's own console says about the step is no output of the step.
    """
    log = _StepLog(context, announce)
    _installation.enter()
    try:
        yield partial(_writing_to, log)
    finally:
        _installation.leave()
        log.close()


class _Router(io.TextIOBase):
    """Stands in for ``sys.stdout`` or ``sys.stderr``: writes there, and to the step's log."""

    def __init__(self, name: str, original: Any) -> None:
        self.name = name
        self.original = original

    def write(self, text: str) -> int:
        """Write everywhere it belongs; a broken log or terminal never breaks the step."""
        log = _step_log.get()
        if log is not None:
            log.write(self.name, text)
        if self.original is not None:
            # Behind the original there may be a router of an earlier run, which a step has kept.
            with _writing_to(None), suppress(ValueError, OSError):
                self.original.write(text)
        return len(text)

    def flush(self) -> None:
        if self.original is not None:
            with suppress(ValueError, OSError):
                self.original.flush()

    def close(self) -> None:
        """Nothing: a step that closes its stdout must not close everybody's."""

    def fileno(self) -> int:
        if self.original is None:
            raise io.UnsupportedOperation("fileno")
        return int(self.original.fileno())

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self.original, "encoding", None) or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return getattr(self.original, "errors", None)

    def __getattr__(self, name: str) -> Any:
        # What a TextIOWrapper has beyond a text stream, such as reconfigure() and buffer.
        return getattr(self.original, name)


_FORMATTER = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


def _mirror_logging(call_handlers: Callable[..., None]) -> Callable[..., None]:
    """``Logger.callHandlers`` that also writes to the log of the step in whose context it is.

    A handler on the root logger would be simpler, and would change what logging does without one:
    basicConfig() would do nothing, and warnings would not reach the terminal.
    """

    def call_handlers_and_mirror(logger: logging.Logger, record: logging.LogRecord) -> None:
        if isinstance(logger, dg.DagsterLogManager):
            # Dagster's events, which its console handler writes to whatever sys.stderr is.
            with _writing_to(None):
                call_handlers(logger, record)
            return
        call_handlers(logger, record)
        log = _step_log.get()
        if log is not None and not _reaches_router(logger, record):
            with suppress(Exception):  # a record that cannot be formatted; its handlers said so
                log.write("stderr", _FORMATTER.format(record) + "\n")

    return call_handlers_and_mirror


def _reaches_router(logger: logging.Logger | None, record: logging.LogRecord) -> bool:
    """Whether a handler has written the record through a router, and so into the step's log.

    Handlers that were made before the routers hold the original ``sys.stderr``.
    """
    handlers: list[logging.Handler] = []
    while logger is not None:
        handlers += logger.handlers
        logger = logger.parent if logger.propagate else None
    if not handlers and logging.lastResort is not None:
        handlers = [logging.lastResort]
    return any(
        record.levelno >= handler.level and isinstance(getattr(handler, "stream", None), _Router)
        for handler in handlers
    )


class _Installation:
    """The routers and the hooks of logging and threads, in place while any step runs."""

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
            self._swap(sys, name, _Router(name, getattr(sys, name)))
        mirror = _mirror_logging(logging.Logger.callHandlers)
        self._swap(logging.Logger, "callHandlers", mirror)
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
