"""What a script shows although no run of Dagster's writes to its console."""

import logging
import sys

logger = logging.getLogger(__name__)


def show(line: str) -> None:
    """Log a line at INFO, or write it to stderr when Python's logging is not set up for that."""
    if logger.isEnabledFor(logging.INFO):
        logger.info(line)
    else:
        print(line, file=sys.stderr)
