"""Python's logging in a job: the run's levels, and a handler if there is none."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""The format of Python's logging in a step's log, unless a handler has its own."""


class _StderrHandler(logging.Handler):
    """Writes to the current ``sys.stderr``."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


@contextmanager
def logging_at(levels: Mapping[str, int]) -> Iterator[None]:
    """Log at these levels in the body, in the whole process.

    A process without handlers logs to ``sys.stderr``. Handlers that an engine has set up for its
    workers stay, and the step's function may set up its own.

    Args:
        levels: the lowest level of each logger, by name; the root logger's is ``""``.
    """
    last_resort = logging.lastResort
    if levels and last_resort is not None:
        # lastResort is not a handler to basicConfig(), which therefore still works in the function.
        handler = _StderrHandler(min(levels.values()))
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        logging.lastResort = handler
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        logging.lastResort = last_resort
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
