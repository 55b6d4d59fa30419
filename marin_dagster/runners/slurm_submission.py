"""Submitting a batch job through submitit: its script, parameters and environment."""

import math
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from marin_dagster.errors import EngineError
from marin_dagster.runners.base import Request
from marin_dagster.runners.settings import SlurmSettings
from marin_dagster.runners.slurm_job_folder import run_step
from marin_dagster.runners.slurm_tools import foreign_variables
from marin_dagster.steps.resources import ResourceConfig, parse_size

_SUBMIT_S = 30
_RANK_PARAMETERS = ("nodes", "ntasks", "ntasks_per_node")


def submit_batch_job(
    name: str, folder: Path, settings: SlurmSettings, request: Request, packed: bytes
) -> str:
    """Submit a job; its id.

    Args:
        name: the job's name.
        folder: the job's folder; must not exist.
        settings: the runner's.
        request: the step's.
        packed: the call for :func:`run_packed`.

    Raises:
        EngineError: Slurm refuses the job, or does not answer.
    """
    try:
        # Readable by this user only: the script holds the step's environment.
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise EngineError(_refusal(name, error)) from error
    try:
        # One for each job: it holds the job's parameters, and delays repeated submissions.
        executor = BatchExecutor(folder)
        executor.update_parameters(**batch_parameters(name, settings, request))
        if not executor.parameters["use_srun"] and not executor.parameters.get("teardown"):
            # The step replaces the shell. Otherwise a cancel kills the shell first, and without
            # cgroups Slurm loses track of a step that ignores SIGTERM.
            executor.python = f"exec {executor.python}"
        job_id: str = executor.submit(run_step, packed).job_id
    except Exception as error:
        # If Slurm has accepted the job after all, it finds no pickle and runs nothing.
        shutil.rmtree(folder, ignore_errors=True)
        raise EngineError(_refusal(name, error)) from error
    return job_id


class BatchExecutor(submitit.SlurmExecutor):
    """submitit's executor, without Slurm's variables of this process and with a deadline."""

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        unset = [part for name in foreign_variables() for part in ("-u", name)]
        return ["env", *unset, "timeout", str(_SUBMIT_S), "sbatch", str(submission_file_path)]


def batch_parameters(name: str, settings: SlurmSettings, request: Request) -> dict[str, Any]:
    """submitit's parameters for a job, with further ones of sbatch under
    ``additional_parameters``."""
    parameters: dict[str, Any] = {
        "nodes": 1,
        **_resource_parameters(request.resources),
        "partition": settings.partition,
        "account": settings.account,
        # submitit's defaults do not suit steps: five minutes, an accounting key, and a warning
        # signal that makes its functions checkpoint themselves.
        "time": settings.time_min,
        "wckey": None,
        "signal_delay_s": 0,
        "no_requeue": True,
        # An empty value drops a derived one; Dagster's config has no null here.
        **{
            key.replace("-", "_"): None if value == "" else value
            for key, value in settings.parameters.items()
        },
        "job_name": name,
    }
    ranks = any(parameters.get(key) not in (None, 1) for key in _RANK_PARAMETERS)
    # Without srun there is one process less between Slurm and the step.
    parameters.setdefault("use_srun", ranks)
    # Otherwise the other ranks wait for one that has died.
    srun_args = ["--kill-on-bad-exit=1"]
    if parameters.get("cpus_per_task") is not None:
        # srun does not inherit it from sbatch.
        srun_args.append(f"--cpus-per-task={parameters['cpus_per_task']}")
    parameters["srun_args"] = [*srun_args, *(parameters.get("srun_args") or [])]
    parameters["setup"] = [*_setup(settings, request), *(parameters.get("setup") or [])]
    known = BatchExecutor._valid_parameters()
    further = dict(parameters.pop("additional_parameters", None) or {})
    for key, value in parameters.items():
        if key not in known and value is not None:
            further[key] = value
    own = {key: value for key, value in parameters.items() if key in known}
    return {**own, "additional_parameters": further}


def _resource_parameters(resources: Any) -> dict[str, Any]:
    """A ``ResourceConfig`` as parameters of sbatch; each replica is a node."""
    if resources is None:
        return {}
    parameters: dict[str, Any] = {
        "nodes": resources.replicas,
        "ntasks_per_node": 1,
        "cpus_per_task": math.ceil(resources.cpu),
        "mem": _mebibytes(resources.ram),
    }
    # --tmp reserves nothing: it selects nodes whose configured TmpDisk is large enough, and most
    # clusters configure none. So it is set only if the step asks for a disk size.
    if parse_size(resources.disk) != parse_size(ResourceConfig.disk):
        parameters["tmp"] = _mebibytes(resources.disk)
    device = resources.device
    if device.kind == "gpu":
        # Lower case: Slurm's names of the models that it detects.
        model = "" if device.variant == "auto" else f"{device.variant.lower()}:"
        parameters["gpus_per_node"] = f"{model}{device.count}"
    return parameters


def _mebibytes(size: str) -> str:
    return f"{math.ceil(parse_size(size) / (1 << 20))}M"


def _setup(settings: SlurmSettings, request: Request) -> list[str]:
    """Shell lines to run before the step."""
    environment = {**settings.env, **request.env_vars}
    return [
        # Keep submitit's own lines out of the step's log.
        "export SUBMITIT_LOG_LEVEL=CRITICAL",
        f"export PYTHONPATH={shlex.quote(_import_path())}",
        *settings.setup,
        *(f"export {key}={shlex.quote(value)}" for key, value in environment.items()),
    ]


def _import_path() -> str:
    """The part of ``sys.path`` outside Python's installation, which the node has, too."""
    own = tuple(os.path.join(prefix, "lib") for prefix in (sys.prefix, sys.base_prefix))
    paths = [os.path.abspath(path) for path in sys.path]
    return os.pathsep.join(dict.fromkeys(path for path in paths if not path.startswith(own)))


def _refusal(name: str, error: Exception) -> str:
    """Why a job was not submitted, and what to do."""
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        return (
            f"job {name} was not submitted: sbatch and srun were not found. Install Slurm's client "
            "commands where runs are executed."
        )
    text = str(error)
    if isinstance(error, (FailedJobError, FailedSubmissionError)):
        text = text or f"sbatch did not answer within {_SUBMIT_S} s"
        text += "\nCheck with sinfo that the cluster answers and has what the step asks for."
    return f"job {name} was not submitted: {text}"
