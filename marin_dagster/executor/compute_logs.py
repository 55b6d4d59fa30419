"""Each step's ``stdout``, ``stderr`` and ``logging`` lines in its own compute log, while it runs.

``log_capture`` finds the log for what a thread writes; ``compute_log_streams`` stores the log.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import IO, Any

import dagster as dg

from marin_dagster._compat import CapturedLogContext
from marin_dagster.executor.compute_log_streams import log_streams
from marin_dagster.executor.log_capture import capturing, current_step, writing_to


class _StepLog:
    """The compute log of one step, opened and announced when the step first writes.

    Most steps of most runs write nothing, and an event costs more than all else that we do.
    """

    def __init__(
        self,
        context: dg.StepExecutionContext,
        announce: Callable[[dg.DagsterEvent], None],
        level: int,
    ) -> None:
        self.level = level
        """The lowest level of lines from loggers without a level."""
        self._context = context
        self._announce = announce
        self._mutex = threading.RLock()
        self._opened = ExitStack()
        self._streams: dict[str, IO[Any] | None] = {}
        self._closed = False

    def write(self, name: str, text: str) -> None:
        """Write to ``stdout`` or ``stderr``; a log that is broken or closed never breaks a step."""
        # UTF-8 cannot hold half of a surrogate pair; the rest of the line can be written.
        text = text.encode("utf-8", "backslashreplace").decode()
        with self._mutex:
            # A thread may outlive its step; what it writes then has no log.
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
            # What the log manager logs and the event itself do not belong to the step's log.
            with writing_to(None):
                self._streams = self._opened_streams()
        return self._streams

    def _opened_streams(self) -> dict[str, IO[Any] | None]:
        context = self._context
        step_key, attempt = context.step.key, context.previous_attempt_count + 1
        manager = context.instance.compute_log_manager
        # Each attempt has its own log: in cloud storage, the next would replace it.
        name = step_key if attempt == 1 else f"{step_key}-{attempt}"
        key = manager.build_log_key_for_run(context.run_id, name)
        streams = self._opened.enter_context(log_streams(manager, key))
        log_context = CapturedLogContext(key)
        self._announce(dg.DagsterEvent.capture_logs(context, [step_key], key, log_context))
        return streams


@contextmanager
def step_log(
    context: dg.StepExecutionContext, announce: Callable[[dg.DagsterEvent], None], level: int
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """A compute log for a step, which this thread is about to run.

    Args:
        context: the step.
        announce: receives the event that points Dagster to the log, once there is one.
        level: the lowest level of Python's logging in the log, for loggers without a level.

    Yields:
        Makes a context in which what is written belongs to the log. It is for the user's code:
        what Dagster's console reports about the step does not belong to the log.
    """
    log = _StepLog(context, announce, level)
    for handler in context.log.handlers:
        _keep_to_step(handler, log)
    try:
        with capturing(log):
            yield partial(writing_to, log)
    finally:
        log.close()


def job_log_levels(managed_loggers: Iterable[str], level: int) -> dict[str, int]:
    """The levels at which a step's job is to log, as the step would in this process.

    Args:
        managed_loggers: names of the loggers that Dagster manages, from the instance's settings.
        level: the lowest level of lines from loggers without a level.
    """
    managed = {name: logging.getLogger(name).level for name in managed_loggers if name != "root"}
    set_levels = {name: own for name, own in managed.items() if own != logging.NOTSET}
    return {"": min(level, logging.getLogger().level), **set_levels}


def _keep_to_step(handler: logging.Handler, log: _StepLog) -> None:
    """Let one step's handler, which Dagster puts on loggers of the process, take only its own
    records; what it writes to a console does not belong to the step's log."""
    handle = handler.handle

    def handle_own(record: logging.LogRecord) -> Any:
        step = current_step()
        if step is not None and step is not log:
            return False
        with writing_to(None):
            return handle(record)

    handler.handle = handle_own  # type: ignore[method-assign]
