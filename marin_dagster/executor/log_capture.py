"""Sends what a thread prints and logs to the log of its step.

Dagster's own capture redirects the descriptors of the process, which threads share. Here the
process's ``sys.stdout`` and ``sys.stderr`` become routers for as long as any step runs: what is
written in a step's context goes to that step's log as well as to where it always went. Threads
that a step starts inherit its context. Output that does not pass through Python (C libraries, child
processes) goes to the process's descriptors only.

Lines of Python's ``logging`` that only the step's log wants, because the run worker's root logger
has a higher level, go there and to no handler.
"""

import contextvars
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import dagster as dg

from marin_dagster.runners.logging_setup import LOG_FORMAT
from marin_dagster.runners.output_reads import inherit_reads


class LogTarget(Protocol):
    """The log of one step."""

    level: int
    """The lowest level of lines from loggers without a level."""

    def write(self, name: str, text: str) -> None:
        """Write to ``stdout`` or ``stderr``; a log that is broken or closed never breaks a step."""
        ...


_log: contextvars.ContextVar[LogTarget | None] = contextvars.ContextVar(
    "marin_dagster_log", default=None
)
"""The log to which what is written in this context belongs."""
_step: contextvars.ContextVar[LogTarget | None] = contextvars.ContextVar(
    "marin_dagster_step", default=None
)
"""The log of the step that this thread works for, whether or not what is written belongs there."""


@contextmanager
def capturing(log: LogTarget) -> Iterator[None]:
    """This thread works for a step; within :func:`writing_to`, the step's log gets its output."""
    _installation.enter()
    try:
        with _set(_step, log):
            yield
    finally:
        _installation.leave()


@contextmanager
def writing_to(log: LogTarget | None) -> Iterator[None]:
    """What is written in the body belongs to the log; to none when None."""
    with _set(_log, log):
        yield


def current_step() -> LogTarget | None:
    """The log of the step that this thread works for."""
    return _step.get()


@contextmanager
def _set(
    variable: contextvars.ContextVar[LogTarget | None], value: LogTarget | None
) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class _Router(io.TextIOBase):
    """Stands in for ``sys.stdout`` or ``sys.stderr``: writes there, and to the step's log."""

    def __init__(self, name: str, original: Any) -> None:
        self.name = name
        self.original = original

    def write(self, text: str) -> int:
        """Write to the stream and the step's log; a broken one never breaks the step."""
        log = _log.get()
        if log is not None:
            log.write(self.name, text)
        if self.original is not None:
            # Behind the original there may be a router of an earlier run, which a step has kept.
            with writing_to(None), suppress(ValueError, OSError):
                self.original.write(text)
        return len(text)

    def flush(self) -> None:
        if self.original is not None:
            with suppress(ValueError, OSError):
                self.original.flush()

    def close(self) -> None:
        """Does nothing: a step that closes its stdout must not close that of the process."""

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


_FORMATTER = logging.Formatter(LOG_FORMAT)


def _enable_for_log(is_enabled_for: Callable[..., bool]) -> Callable[..., bool]:
    """``Logger.isEnabledFor`` that is also true for records that only the step's log takes."""

    def is_enabled_for_log(logger: logging.Logger, level: int) -> bool:
        return is_enabled_for(logger, level) or _is_for_log_only(logger, level)

    return is_enabled_for_log


def _is_for_log_only(logger: logging.Logger, level: int) -> bool:
    """Whether a record below the logger's level belongs into the log of the step in whose context
    this is: when the level is the root logger's. One that somebody has set is kept."""
    log = _log.get()
    if log is None or level < log.level or logger.disabled or logger.manager.disable >= level:
        return False
    while logger.parent is not None and logger.level == logging.NOTSET:
        logger = logger.parent
    return logger is logging.getLogger() and level < logger.level


def _mirror_logging(call_handlers: Callable[..., None]) -> Callable[..., None]:
    """``Logger.callHandlers`` that also writes to the log of the step in whose context it is.

    A handler on the root logger would be simpler, and would change what logging does without one:
    basicConfig() would do nothing, and warnings would not reach the terminal.
    """

    def call_handlers_and_mirror(logger: logging.Logger, record: logging.LogRecord) -> None:
        if isinstance(logger, dg.DagsterLogManager):
            # Dagster's events, which its console handler writes to whatever sys.stderr is.
            with writing_to(None), _set(_step, None):
                call_handlers(logger, record)
            return
        log = _log.get()
        only_for_log = _is_for_log_only(logger, record.levelno)
        # First, since Dagster's handler on a managed logger rewrites the record.
        if log is not None and (only_for_log or not _reaches_router(logger, record)):
            with suppress(Exception):  # a record that cannot be formatted; its handlers report it
                log.write("stderr", _FORMATTER.format(record) + "\n")
        if not only_for_log:
            call_handlers(logger, record)

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
        enable = _enable_for_log(logging.Logger.isEnabledFor)
        self._swap(logging.Logger, "isEnabledFor", enable)
        self._swap(threading.Thread, "start", _start_in_context(threading.Thread.start))

    def _swap(self, owner: Any, name: str, value: Any) -> None:
        old = getattr(owner, name)
        setattr(owner, name, value)

        def restore() -> None:
            # Other code may have replaced it meanwhile; leave that alone.
            if getattr(owner, name) is value:
                setattr(owner, name, old)

        self._undo.append(restore)


_installation = _Installation()


def _start_in_context(start: Callable[[threading.Thread], None]) -> Callable[..., None]:
    def start_in_context(thread: threading.Thread) -> None:
        if (log := _log.get()) is not None:
            run, inherit = thread.run, inherit_reads()

            def run_with_log() -> None:
                inherit()
                _log.set(log)
                _step.set(log)
                run()

            thread.run = run_with_log  # type: ignore[method-assign]
        start(thread)

    return start_in_context
