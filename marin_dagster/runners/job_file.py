"""``.step_job.json``: which job of which runner builds an output, for the next driver."""

import json
import logging
from dataclasses import asdict, dataclass

from marin_dagster.cache import Attempt, OutputDir
from marin_dagster.errors import StoreError

logger = logging.getLogger(__name__)

JOB_FILE = ".step_job.json"


@dataclass(frozen=True)
class JobFile:
    """The job that builds an output: what ``.step_job.json`` says."""

    runner: str
    job: str
    owner: str
    """Worker id of the attempt that submitted it, or attached to it last."""
    engine: str
    """Which engine the runner stands for."""
    cancelled: bool = False
    """Its driver wanted it stopped, and did not see it end."""


def read_job_file(folder: OutputDir) -> JobFile | None:
    """The job that was submitted for an output and is not known to have ended.

    Raises:
        StoreError: the store refused.
    """
    try:
        return JobFile(**json.loads(folder.read(JOB_FILE) or b""))
    except (ValueError, TypeError):
        return None


def write_job_file(attempt: Attempt, note: JobFile) -> None:
    """Write the note of an attempt's job.

    Raises:
        StoreError: the store refused.
    """
    attempt.folder.write(JOB_FILE, json.dumps(asdict(note)).encode())


def delete_job_file(attempt: Attempt) -> None:
    """Remove the note of a job that has ended, if it is still this attempt's."""
    try:
        note = read_job_file(attempt.folder)
        if note is not None and note.owner == attempt.worker_id:
            attempt.folder.delete(JOB_FILE)
    except StoreError:
        logger.exception("could not remove %s of %s", JOB_FILE, attempt.folder.url)
