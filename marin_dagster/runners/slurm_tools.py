"""Calling Slurm's tools, and reading their output."""

import os
import re
import signal
import subprocess

from marin_dagster.errors import EngineError
from marin_dagster.runners.base import JobState, JobStatus, describe_exit

_ASK_S = 15.0
"""Deadline of a call. Slurm's tools report a timeout of their own after about 9 seconds."""
JOB_STATES = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD"), JobState.PENDING),
    **dict.fromkeys(("REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"), JobState.PENDING),
    "COMPLETED": JobState.SUCCEEDED,
    **dict.fromkeys(("FAILED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"), JobState.FAILED),
    "CANCELLED": JobState.CANCELLED,
    **dict.fromkeys(("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "REVOKED"), JobState.LOST),
}
"""Slurm's states. In any other, such as COMPLETING, a part of the job still runs."""
_REASONS = {
    "OUT_OF_MEMORY": "out of memory",
    "DEADLINE": "deadline reached",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node failed",
    "BOOT_FAIL": "node failed to start",
    "REVOKED": "moved to another cluster",
}
_SLURMS_OWN = ("SBATCH_", "SCANCEL_", "SCONTROL_", "SLURM_", "SLURMD_", "SQUEUE_", "SRUN_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
_NO_LOG_FILE = 53
"""Slurm's signal number for a job whose log could not be opened."""
_MEMORY_KILL = re.compile(r"slurmstepd.*(exceeded .*memory limit|oom.kill)", re.IGNORECASE)
_FORGOTTEN = "Invalid job id"


def job_status(line: str, stderr: str = "") -> JobStatus:
    """The status in a line of ``scontrol -o show job``.

    Args:
        line: the line.
        stderr: the end of the job's stderr. Without cgroups, only it shows that Slurm has killed
            the job for its memory.
    """
    name = job_field(line, "JobState")
    state = JOB_STATES.get(name, JobState.RUNNING)
    if state is JobState.LOST and job_field(line, "Requeue") == "1":
        # The job allows a requeue after all: Slurm is about to start it again.
        return JobStatus(JobState.PENDING, _REASONS[name])
    if name == "TIMEOUT":
        return JobStatus(
            state, f"time limit of {_minutes(job_field(line, 'TimeLimit'))} min reached"
        )
    if name == "FAILED":
        code, _, number = job_field(line, "ExitCode").partition(":")
        exit_code = -int(number) if int(number) else int(code)
        if exit_code == -_NO_LOG_FILE:
            reason = f"its node cannot write the log {job_field(line, 'StdOut')}"
        elif exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL) and _MEMORY_KILL.search(stderr):
            reason = "out of memory"
        else:
            reason = describe_exit(exit_code) if exit_code else job_field(line, "Reason")
        return JobStatus(state, reason)
    return JobStatus(state, _REASONS.get(name, ""))


def foreign_variables() -> list[str]:
    """Environment variables of this process that must not reach Slurm's tools.

    They would override the options in a job's script, make squeue filter jobs or ask another
    cluster, and let a job inherit the shape of the job that submits it. The variables for finding
    the cluster and for authentication stay.
    """
    return [name for name in os.environ if name.startswith(_SLURMS_OWN) and name not in _KEPT]


def ask_slurm(*command: str) -> str:
    """The output of one of Slurm's tools.

    Raises:
        EngineError: the tool is missing, fails, or does not answer in time.
    """
    tool = command[0]
    foreign = foreign_variables()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_S,
            check=False,
            env={name: value for name, value in os.environ.items() if name not in foreign},
        )
    except FileNotFoundError as error:
        raise EngineError(f"{tool} was not found. Install Slurm's client commands.") from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{tool} did not answer within {_ASK_S:.0f} s.") from error
    if done.returncode != 0:
        raise EngineError(f"{tool}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def show_job(job_id: str) -> str | None:
    """scontrol's line about a job; None if Slurm has forgotten it."""
    try:
        return ask_slurm("scontrol", "--oneliner", "show", "job", job_id).strip()
    except EngineError as error:
        if _FORGOTTEN in str(error):
            return None
        raise


def cluster_identity() -> str:
    """The cluster that Slurm's tools ask, and the user if Slurm hides the jobs of other users.

    Raises:
        EngineError: Slurm does not answer.
    """
    shown = ask_slurm("scontrol", "show", "config")
    config = dict(re.findall(r"^(\w+)\s*= (.*?)\s*$", shown, re.MULTILINE))
    private = {"jobs", "all"} & set(config.get("PrivateData", "").lower().split(","))
    owner = f", jobs of uid {os.getuid()} only" if private else ""
    return f"slurm {config.get('ClusterName', '')}{owner}"


def job_field(line: str, name: str) -> str:
    """One field of scontrol's line; empty if it is missing."""
    match = re.search(rf"(?:^| ){name}=(.*?)(?= [A-Z][\w:/&]*=|$)", line)
    return match[1] if match else ""


def _minutes(limit: str) -> int | str:
    """Slurm's ``[days-]hours:minutes:seconds`` in minutes."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", limit)
    if match is None:
        return limit
    days, hours, minutes, _ = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes
