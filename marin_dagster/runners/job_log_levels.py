"""Python's logging in a job: the levels that the run asks for, and a handler when there is none."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""How a line of Python's logging looks in a step's log, unless a handler says otherwise."""


class _StderrHandler(logging.Handler):
    """Writes to what ``sys.stderr`` is at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


@contextmanager
def logging_at(levels: Mapping[str, int]) -> Iterator[None]:
    """Log at these levels in the body, in the whole process.

    A process without handlers writes to ``sys.stderr``. Handlers that an engine has set up for its
    workers stay, and what the step's function sets up has its way.

    Args:
        levels: the lowest level of each logger, by name; the root logger's is ``""``.
    """
    last_resort = logging.lastResort
    if levels and last_resort is not None:
        # basicConfig() in the function still works: to Python, this is no handler.
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
