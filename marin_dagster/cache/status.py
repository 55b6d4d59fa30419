"""The status file ``.executor_status``: one word, whether an output is finished.

The format is Marin's: a bare token. Of an older form, JSON lines with a ``status`` each, the last
line is read. Anything else is not a success.
"""

import json
from enum import StrEnum

from marin_dagster.cache.store import OutputDir

STATUS_FILE = ".executor_status"


class Status(StrEnum):
    """The content of a status file."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    RUNNING = "RUNNING"
    DEP_FAILED = "DEP_FAILED"
    """Written by old executors only; read as a failure, never written."""


def parse_status(content: bytes) -> Status | None:
    """The status in a file's content; None for empty, unknown or unreadable content."""
    lines = [line.strip() for line in content.decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line]
    if len(lines) == 1 and not lines[0].startswith("{"):
        return _token(lines[0])
    status = None
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("status"), str):
            status = _token(event["status"])
    return status


def read_status(folder: OutputDir) -> Status | None:
    """The status of an output, bypassing listing caches; None without a valid one.

    Raises:
        StoreError: the store refused.
    """
    content = folder.read(STATUS_FILE)
    return None if content is None else parse_status(content)


def write_status(folder: OutputDir, status: Status) -> None:
    """Write the status as a bare token.

    Raises:
        StoreError: the store refused; the old status stays.
    """
    folder.write(STATUS_FILE, status.value.encode())


def _token(text: str) -> Status | None:
    return Status(text) if text in Status.__members__ else None
