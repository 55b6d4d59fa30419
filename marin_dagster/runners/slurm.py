"""Steps as Slurm batch jobs, submitted through submitit.

Each job has a folder of its own below ``SlurmSettings.folder``, named like the job: its script, the
pickled call and its logs. It goes when the job has succeeded and its log has been read; that of any
other job stays, for people to look at.

submitit writes the script and the pickle, and is what the node runs. Everything after that is asked
of Slurm itself, since submitit needs Slurm's accounting database to notice that a job has crashed:
``squeue`` says which of the user's jobs are alive, all in one call, and ``scontrol`` how one ended.
Both only know jobs that ended in the last minutes (``MinJobAge``).

Slurm itself starts no job a second time (``--no-requeue``): a preempted job, or one whose node has
failed, is reported as lost.
"""

import logging
import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from marin_dagster.errors import EngineError
from marin_dagster.runners.base import Job, JobState, JobStatus, Request, describe_exit
from marin_dagster.runners.payload import StepCall, pack
from marin_dagster.runners.polling import Poller
from marin_dagster.runners.settings import SlurmSettings
from marin_dagster.runners.slurm_files import Tail, exit_code, run_step
from marin_dagster.runners.slurm_tools import (
    JOB_STATES,
    ask_slurm,
    cluster_identity,
    foreign_variables,
    job_field,
    job_status,
    resource_parameters,
    show_job,
)
from marin_dagster.steps import StepLike

logger = logging.getLogger(__name__)

_SUBMIT_S = 30
_LOG_PAUSE_S = 0.2
_TAIL_BYTES = 4096
_STANDS_S = 30.0
"""How long a job's function must have ended before Slurm's word that the job has not counts less.
Usual epilogs are over by then."""

_ELSEWHERE = ("zone", "target_cluster", "container_profile", "image")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(eq=False)
class SlurmJob(Job):
    """One batch job."""

    runner: "SlurmRunner" = field(kw_only=True)
    folder: Path = field(kw_only=True)
    """Its script, call and logs."""
    ended_at: float | None = field(default=None, kw_only=True)
    """When its function was first seen to have ended while Slurm said otherwise, in seconds of
    ``time.monotonic()``."""

    def outcome(self) -> JobStatus | None:
        """How its function has ended, by the files that its ranks leave; None while one runs."""
        code = exit_code(self.folder)
        if not code:
            return None if code is None else JobStatus(JobState.SUCCEEDED)
        return JobStatus(JobState.FAILED, describe_exit(code))

    def logs(self) -> Iterator[tuple[str, str]]:
        """Its log files, those of all ranks, as they grow."""
        tails: dict[Path, Tail] = {}
        hurried = False
        if not os.access(self.folder, os.R_OK | os.X_OK):
            yield "stderr", f"[{self.folder} with the log of job {self.id} cannot be read here]\n"
        while not self.runner.closed.is_set():
            final = self.status.state.final
            if not hurried and self.outcome() is not None:
                # Sooner than the next question would find out.
                hurried = True
                self.runner.poller.hurry()
            for path in sorted(self.folder.glob(f"{self.id}_*_log.*")):
                tails.setdefault(path, Tail(path))
            # Lines of several ranks must not mix.
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
        """Cancel it, waiting or running: SIGTERM to all its processes, then SIGKILL after
        ``KillWait``; on a cluster without cgroups, a child that ignores SIGTERM may be missed."""
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
        """The cluster, and the user where Slurm hides one's jobs from another: a job is looked for
        only where it can be seen.

        Raises:
            EngineError: Slurm does not answer.
        """
        if not self._engine:
            self._engine = cluster_identity()
        return self._engine

    def refuses(self, step: StepLike, request: Request) -> str | None:
        """Slurm has no TPUs, places and images, and nodes have the packages that they have."""
        path, resources = step.output_path, request.resources
        if not self.settings.shared_disk and ("://" not in path or path.startswith("file://")):
            return f"its nodes do not see this machine's disk (output path {path})"
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
        folder = self._folder(name)
        try:
            # For this user only: the script holds the step's environment.
            folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise EngineError(_refusal(name, error)) from error
        try:
            # One for each job, since it holds the job's parameters; it also slows itself down.
            executor = _Executor(folder)
            executor.update_parameters(**self._parameters(name, request))
            if not executor.parameters["use_srun"] and not executor.parameters.get("teardown"):
                # The step takes the shell's place. Else the shell dies of a cancellation first, and
                # a step that ignores SIGTERM is out of Slurm's sight where there are no cgroups.
                executor.python = f"exec {executor.python}"
            submitted = executor.submit(run_step, packed)
        except Exception as error:
            # A job that was accepted after all finds no pickle there, and runs nothing.
            shutil.rmtree(folder, ignore_errors=True)
            raise EngineError(_refusal(name, error)) from error
        job = SlurmJob(name, id=submitted.job_id, runner=self, folder=folder)
        self.poller.watch(job)
        return job

    def attach(self, name: str) -> SlurmJob | None:
        """The newest job of that name, whoever submitted it; it may have ended some minutes ago."""
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
        """Stop reading logs and asking. Jobs go on."""
        self.closed.set()
        self.poller.close()

    def _folder(self, name: str) -> Path:
        return Path(self.settings.folder).expanduser().absolute() / name

    def _ask(self, jobs: Sequence[SlurmJob]) -> Mapping[str, JobStatus]:
        # All jobs of a cluster may be many; those of another user are shown one by one below.
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
            if (ended := _ended_all_the_same(job, name)) is not None:
                answers[job.name] = ended
        return answers

    def _parameters(self, name: str, request: Request) -> dict[str, Any]:
        """What submitit is told: its own parameters, and further ones of sbatch."""
        parameters: dict[str, Any] = {
            "nodes": 1,
            **resource_parameters(request.resources),
            "partition": self.settings.partition,
            "account": self.settings.account,
            # Submitit's own defaults are five minutes, a key of its own for accounting, and a
            # warning by a signal that means "save yourself" to it; none of that is for steps.
            "time": self.settings.time_min,
            "wckey": None,
            "signal_delay_s": 0,
            "no_requeue": True,
            # An empty one drops what is derived; Dagster's config has no null here.
            **{
                key.replace("-", "_"): None if value == "" else value
                for key, value in self.settings.parameters.items()
            },
            "job_name": name,
        }
        ranks = any(parameters.get(key) not in (None, 1) for key in _RANK_PARAMETERS)
        # Without srun there is one process less between Slurm and the step.
        parameters.setdefault("use_srun", ranks)
        # One rank that dies would leave the others waiting for it.
        srun_args = ["--kill-on-bad-exit=1"]
        if parameters.get("cpus_per_task") is not None:
            # srun does not take it from sbatch.
            srun_args.append(f"--cpus-per-task={parameters['cpus_per_task']}")
        parameters["srun_args"] = [*srun_args, *(parameters.get("srun_args") or [])]
        parameters["setup"] = [*self._setup(request), *(parameters.get("setup") or [])]
        known = _Executor._valid_parameters()
        further = dict(parameters.pop("additional_parameters", None) or {})
        for key, value in parameters.items():
            if key not in known and value is not None:
                further[key] = value
        own = {key: value for key, value in parameters.items() if key in known}
        return {**own, "additional_parameters": further}

    def _setup(self, request: Request) -> list[str]:
        """Shell lines before the step."""
        environment = {**self.settings.env, **request.env_vars}
        return [
            # Its own lines are not the step's.
            "export SUBMITIT_LOG_LEVEL=CRITICAL",
            f"export PYTHONPATH={shlex.quote(_import_path())}",
            *self.settings.setup,
            *(f"export {key}={shlex.quote(value)}" for key, value in environment.items()),
        ]


_RANK_PARAMETERS = ("nodes", "ntasks", "ntasks_per_node")


class _Executor(submitit.SlurmExecutor):
    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        unset = [part for name in foreign_variables() for part in ("-u", name)]
        return ["env", *unset, "timeout", str(_SUBMIT_S), "sbatch", str(submission_file_path)]


def _import_path() -> str:
    """Where this process finds modules beside its installation, which the node's Python has too."""
    own = tuple(os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix))
    paths = [os.path.abspath(path) for path in sys.path]
    return os.pathsep.join(dict.fromkeys(path for path in paths if not path.startswith(own)))


def _ended_all_the_same(job: SlurmJob, state: str) -> JobStatus | None:
    """How a job has ended that Slurm has called waiting or about to end for long since then, as it
    does when a node no longer answers. A job that waits is cancelled, so that it never starts again
    over the finished output."""
    waits = JOB_STATES.get(state) is JobState.PENDING
    outcome = job.outcome() if waits or state == "COMPLETING" else None
    if outcome is None:
        job.ended_at = None
        return None
    job.ended_at = job.ended_at or time.monotonic()
    if time.monotonic() - job.ended_at < _STANDS_S:
        return None
    if waits:
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


def _refusal(name: str, error: Exception) -> str:
    """Why a job was not submitted, and what to do."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        return (
            f"job {name} was not submitted: sbatch and srun were not found. Install Slurm's client "
            "commands where runs are executed."
        )
    text = str(error)
    if isinstance(error, (FailedJobError, FailedSubmissionError)):
        text = text or f"sbatch has not answered within {_SUBMIT_S} s"
        text += "\nCheck with sinfo that the cluster answers and has what the step asks for."
    return f"job {name} was not submitted: {text}"
