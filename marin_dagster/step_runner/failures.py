"""How a script's console and exceptions show what a step raised: the frames of the step alone."""

import copy
import logging
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import dagster as dg

from marin_dagster._compat import SerializableErrorInfo, get_log_record_metadata
from marin_dagster.errors import MarinDagsterError
from marin_dagster.runners import inline

_CALLER = f'File "{inline.__file__}"'
_CALLERS_NAME = f"in {inline.run_inline.__name__}\n"


def with_own_frames(error: Exception) -> Exception:
    """The exception with a traceback that begins in the step's function.

    That of our own errors is dropped, since their messages say what to do; any other that was not
    raised in the function stays whole.
    """
    frame = error.__traceback__
    while frame is not None:
        below = frame.tb_next
        if _calls_function(frame):
            return error.with_traceback(below)
        frame = below
    return error.with_traceback(None) if isinstance(error, MarinDagsterError) else error


def _calls_function(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code is inline.run_inline.__code__


def _console(_: dg.InitLoggerContext) -> logging.Logger:
    # At DEBUG it logs every event, some fifty lines for each step.
    config = {"name": "dagster", "log_level": "INFO"}
    console: Any = dg.colored_console_logger
    found: logging.Logger = console(dg.build_init_logger_context(logger_config=config))
    for handler in found.handlers:
        handler.setFormatter(_ShortErrors(handler.formatter))
    return found


script_console = dg.LoggerDefinition(
    _console, description="Dagster's console at INFO, with what a step raised in a few lines."
)


class _ShortErrors(logging.Formatter):
    """Formats failures without the frames of the libraries around the step's function."""

    def __init__(self, formatter: logging.Formatter | None) -> None:
        super().__init__()
        self._formatter = formatter or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        """The record as the formatter around which this is has it, with a shorter message."""
        event = get_log_record_metadata(record)["dagster_event"]
        lines = None if event is None else _lines(event)
        if lines is not None:
            # Other handlers have the same record.
            record = copy.copy(record)
            record.msg = "\n".join([str(record.msg).partition("\n")[0], *lines])
        return self._formatter.format(record)


def _lines(event: dg.DagsterEvent) -> Sequence[str] | None:
    """What to show below the first line of a failure's message; None for other events."""
    if event.is_step_failure:
        return list(_short(event.step_failure_data.error))
    if event.is_step_up_for_retry:
        return list(_short(event.step_retry_data.error))
    return [] if event.is_run_failure else None


def _short(error: SerializableErrorInfo | None) -> Iterator[str]:
    """The step's own frames, and the message."""
    # Dagster's error says that the op failed; its cause is what the step raised.
    while error is not None and error.cause is not None:
        error = error.cause
    if error is None:
        return
    called = [
        number
        for number, frame in enumerate(error.stack)
        if _CALLER in frame and _CALLERS_NAME in frame
    ]
    if called:
        yield from (frame.rstrip("\n") for frame in error.stack[called[-1] + 1 :])
    yield error.message.rstrip("\n")
