"""``.step_job.json``: the job that builds an output, so that the next driver can attach to it."""

import json
import logging
from dataclasses import asdict, dataclass

from marin_dagster.cache import Attempt, OutputDir
from marin_dagster.errors import StoreError

logger = logging.getLogger(__name__)

JOB_FILE = ".step_job.json"


@dataclass(frozen=True)
class JobFile:
    """The content of ``.step_job.json``."""

    runner: str
    job: str
    owner: str
    """Worker id of the attempt that submitted the job, or attached to it last."""
    engine: str
    """The runner's engine."""
    cancelled: bool = False
    """Whether its driver cancelled it but did not see it end."""


def read_job_file(folder: OutputDir) -> JobFile | None:
    """The job file of an output; None if there is none, or it cannot be read.

    Raises:
        StoreError: the store refused.
    """
    try:
        return JobFile(**json.loads(folder.read(JOB_FILE) or b""))
    except (ValueError, TypeError):
        return None


def write_job_file(attempt: Attempt, job_file: JobFile) -> None:
    """Write the file of an attempt's job.

    Raises:
        StoreError: the store refused.
    """
    attempt.folder.write(JOB_FILE, json.dumps(asdict(job_file)).encode())


def delete_job_file(attempt: Attempt) -> None:
    """Remove the file of a job that has ended, if this attempt still owns it."""
    try:
        job_file = read_job_file(attempt.folder)
        if job_file is not None and job_file.owner == attempt.worker_id:
            attempt.folder.delete(JOB_FILE)
    except StoreError:
        logger.exception("could not remove %s of %s", JOB_FILE, attempt.folder.url)
