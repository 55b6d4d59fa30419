"""Copying a job's log while the job runs, without delaying the job."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from marin_dagster.runners.base import Job

logger = logging.getLogger(__name__)

_LOG_DRAIN_S = 5.0
"""How long to wait for the rest of the log after the job has ended."""
_LOG_WAITING_CHARS = 64 << 20
"""How much unwritten log is kept; more is dropped."""


@contextmanager
def log_of(job: Job, write: Callable[[str, str], None]) -> Iterator[None]:
    """Copy the job's log while the body runs, and then up to 5 seconds until it is drained.

    Reading and writing have a thread each: the engine's pipe must be emptied even if writing is
    slow or fails.
    """
    pieces: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
    waiting = [0]

    def read() -> None:
        try:
            for stream, text in job.logs():
                if waiting[0] < _LOG_WAITING_CHARS:
                    waiting[0] += len(text)
                    pieces.put((stream, text))
        except Exception as error:
            pieces.put(("stderr", f"[the log of job {job.label} broke off: {error}]\n"))
        pieces.put(None)

    def copy() -> None:
        while (piece := pieces.get()) is not None:
            waiting[0] -= len(piece[1])
            try:
                write(*piece)
            except Exception:
                logger.debug("could not write a piece of the log of %s", job.label, exc_info=True)

    threads = [
        threading.Thread(target=work, name=f"marin-log-{job.name}", daemon=True)
        for work in (read, copy)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        # A log that hangs must not delay the run.
        give_up_at = time.monotonic() + _LOG_DRAIN_S
        for thread in threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))
