"""Steps as Slurm batch jobs, submitted through submitit.

Each job has a folder below ``SlurmSettings.folder`` with the job's name: it holds the script, the
pickled call and the logs. It is removed when the job has succeeded and its log has been read; that
of any other job stays for inspection.

submitit submits the job and is what the node runs. The status comes from Slurm's tools, since
submitit notices a crash only with Slurm's accounting database: one ``squeue`` lists all jobs of the
user, and ``scontrol`` shows how a job has ended. Both forget a job some minutes after its end
(``MinJobAge``).

Slurm does not restart jobs (``--no-requeue``): a preempted job, or one whose node has failed, is
lost.
"""

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from marin_dagster.errors import EngineError
from marin_dagster.runners.base import Job, JobState, JobStatus, Request, describe_exit
from marin_dagster.runners.payload import StepCall, pack
from marin_dagster.runners.polling import Poller
from marin_dagster.runners.settings import SlurmSettings
from marin_dagster.runners.slurm_job_folder import Tail, exit_code
from marin_dagster.runners.slurm_submission import submit_batch_job
from marin_dagster.runners.slurm_tools import (
    JOB_STATES,
    ask_slurm,
    cluster_identity,
    job_field,
    job_status,
    show_job,
)
from marin_dagster.steps import StepLike

logger = logging.getLogger(__name__)

_LOG_PAUSE_S = 0.2
_TAIL_BYTES = 4096
_STANDS_S = 30.0
"""How long after its function a job has ended even if Slurm does not report the end. Usual epilogs
take less."""

_ELSEWHERE = ("zone", "target_cluster", "container_profile", "image")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(eq=False)
class SlurmJob(Job):
    """One batch job."""

    runner: "SlurmRunner" = field(kw_only=True)
    folder: Path = field(kw_only=True)
    """Its script, call and logs."""
    ended_at: float | None = field(default=None, kw_only=True)
    """Since when its function has ended although Slurm does not report the end, in seconds of
    ``time.monotonic()``."""

    def outcome(self) -> JobStatus | None:
        """How its function has ended, from the files that its ranks write; None while one runs."""
        code = exit_code(self.folder)
        if not code:
            return None if code is None else JobStatus(JobState.SUCCEEDED)
        return JobStatus(JobState.FAILED, describe_exit(code))

    def logs(self) -> Iterator[tuple[str, str]]:
        """The log files of all ranks, as they grow."""
        tails: dict[Path, Tail] = {}
        hurried = False
        if not os.access(self.folder, os.R_OK | os.X_OK):
            yield "stderr", f"[cannot read {self.folder}, which has the log of job {self.id}]\n"
        while not self.runner.closed.is_set():
            final = self.status.state.final
            if not hurried and self.outcome() is not None:
                # Poll now: Slurm is about to report the end.
                hurried = True
                self.runner.poller.hurry()
            for path in sorted(self.folder.glob(f"{self.id}_*_log.*")):
                tails.setdefault(path, Tail(path))
            # Do not mix lines of several ranks.
            whole_lines = len(tails) > 2
            pieces = [(tail.stream, tail.read(whole_lines, final)) for tail in tails.values()]
            yield from ((stream, text) for stream, text in pieces if text)
            if any(tail.grew for tail in tails.values()):
                continue
            if final:
                break
            self.runner.closed.wait(_LOG_PAUSE_S)
        if self.status.state is JobState.SUCCEEDED:
            shutil.rmtree(self.folder, ignore_errors=True)

    def cancel(self) -> None:
        """Cancel it, pending or running: SIGTERM to all its processes, then SIGKILL after
        ``KillWait``. On a cluster without cgroups, a child that ignores SIGTERM may survive."""
        ask_slurm("scancel", self.id)
        self.runner.poller.hurry()


@dataclass(eq=False)
class SlurmRunner:
    """Runs steps as batch jobs of the cluster that ``sbatch`` submits to."""

    name: str
    settings: SlurmSettings
    closed: threading.Event = field(default_factory=threading.Event, init=False)
    poller: Poller[SlurmJob] = field(init=False)
    _engine: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.poller = Poller(self._ask, self.name)

    @property
    def engine(self) -> str:
        """The cluster, and the user if Slurm hides the jobs of other users.

        Raises:
            EngineError: Slurm does not answer.
        """
        if not self._engine:
            self._engine = cluster_identity()
        return self._engine

    def refuses(self, step: StepLike, request: Request) -> str | None:
        """Refuse TPUs, regions, images, package installations and disks out of nodes' reach."""
        path, resources = step.output_path, request.resources
        if not self.settings.shared_disk and ("://" not in path or path.startswith("file://")):
            return f"its nodes cannot access this machine's disk (output path {path})"
        for name in ("pip_packages", "pip_dependency_groups"):
            if getattr(request, name):
                return f"it installs no packages ({name}={list(getattr(request, name))!r})"
        for variable in (*self.settings.env, *request.env_vars):
            if not _VARIABLE.fullmatch(variable):
                return f"a shell cannot set the environment variable {variable!r}"
        if resources is None:
            return None
        if resources.device.kind == "tpu":
            return f"Slurm has no TPUs (device {resources.device.variant})"
        if resources.regions is not None and "*" not in resources.regions:
            return f"Slurm cannot honour regions={list(resources.regions)!r}"
        for name in _ELSEWHERE:
            value = getattr(resources, name, None)
            if value is not None:
                return f"Slurm cannot honour {name}={value!r}"
        return None

    def submit(self, name: str, call: StepCall, request: Request) -> SlurmJob:
        """Submit a batch job for the call."""
        packed = pack(call)
        folder = Path(self.settings.folder).expanduser().absolute() / name
        job_id = submit_batch_job(name, folder, self.settings, request, packed)
        job = SlurmJob(name, id=job_id, runner=self, folder=folder)
        self.poller.watch(job)
        return job

    def attach(self, name: str) -> SlurmJob | None:
        """The newest job of that name, of any user; it may have ended some minutes ago."""
        every = ("squeue", "--noheader", "--states=all")
        ids = ask_slurm(*every, f"--name={name}", "--format=%A").split()
        line = show_job(max(ids, key=int)) if ids else None
        if line is None:
            return None
        folder = Path(job_field(line, "StdOut")).parent
        job = SlurmJob(name, id=job_field(line, "JobId"), runner=self, folder=folder)
        job.report(_status(job, line))
        if not job.status.state.final:
            self.poller.watch(job)
        return job

    def close(self) -> None:
        """Stop reading logs and polling. Jobs go on."""
        self.closed.set()
        self.poller.close()

    def _ask(self, jobs: Sequence[SlurmJob]) -> Mapping[str, JobStatus]:
        # A cluster may have many jobs, so list this user's only; scontrol shows any others below.
        listed = ask_slurm("squeue", "--noheader", f"--user={os.getuid()}", "--format=%A %T")
        alive = dict(line.split() for line in listed.splitlines())
        answers = {}
        for job in jobs:
            name = alive.get(job.id, "")
            state = JOB_STATES.get(name, JobState.RUNNING) if name else None
            if state is not None and not state.final:
                answers[job.name] = JobStatus(state)
            elif (line := show_job(job.id)) is not None:
                name = job_field(line, "JobState")
                answers[job.name] = _status(job, line)
            if (ended := _overdue_end(job, name)) is not None:
                answers[job.name] = ended
        return answers


def _overdue_end(job: SlurmJob, state: str) -> JobStatus | None:
    """How a job has ended, if its function ended long ago but Slurm reports it as COMPLETING or
    pending, as it does when a node does not answer. A pending job is cancelled, so that it never
    runs again over the finished output."""
    pending = JOB_STATES.get(state) is JobState.PENDING
    outcome = job.outcome() if pending or state == "COMPLETING" else None
    if outcome is None:
        job.ended_at = None
        return None
    job.ended_at = job.ended_at or time.monotonic()
    if time.monotonic() - job.ended_at < _STANDS_S:
        return None
    if pending:
        try:
            ask_slurm("scancel", job.id)
        except EngineError as error:
            logger.warning("job %s has ended and cannot be cancelled: %s", job.id, error)
            return None
    return outcome


def _status(job: SlurmJob, line: str) -> JobStatus:
    ends = []
    for path in job.folder.glob(f"{job.id}_*_log.err"):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            ends.append(file.read().decode(errors="replace"))
    return job_status(line, "\n".join(ends))
