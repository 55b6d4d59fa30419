"""Slurm's answers about jobs, the requests to it, and what is refused; without a Slurm."""

import os
from pathlib import Path
from typing import Any

import pytest

from helpers.step_functions import write
from marin_dagster import ResourceConfig, StepSpec
from marin_dagster.errors import RoutingError
from marin_dagster.runners import (
    JobState,
    JobStatus,
    Request,
    Routing,
    RoutingConfig,
    SlurmSettings,
    slurm,
    slurm_tools,
)
from marin_dagster.runners.slurm import SlurmJob, SlurmRunner
from marin_dagster.runners.slurm_submission import BatchExecutor, batch_parameters
from marin_dagster.runners.slurm_tools import job_status

LINE = (
    "JobId=7 JobName=step-1a2b-1 UserId=root(0) MCS_label=N/A Account=(null) QOS=(null) "
    "JobState={state} Reason={reason} Dependency=(null) Requeue={requeue} Restarts={restarts} "
    "BatchFlag=1 Reboot=0 ExitCode={code} RunTime=00:00:02 TimeLimit={limit} TimeMin=N/A "
    "Partition=main NodeList=node MinMemoryNode=1G Command=(null) WorkDir=/work "
    "StdErr=/jobs of us/7_0_log.err StdIn=/dev/null StdOut=/jobs of us/7_0_log.out Power="
)
"""As Slurm 22.05 prints it, without the fields that do not matter here."""


def line(
    state: str,
    code: str = "0:0",
    *,
    reason: str = "None",
    requeue: int = 0,
    restarts: int = 0,
    limit: str = "UNLIMITED",
) -> str:
    return LINE.format(
        state=state, code=code, reason=reason, requeue=requeue, restarts=restarts, limit=limit
    )


MEMORY_KILL = "slurmstepd-node: error: StepId=7.batch exceeded memory limit (9 > 8), being killed"


@pytest.mark.parametrize(
    ("shown", "stderr", "state", "reason"),
    [
        (line("PENDING", reason="Resources"), "", JobState.PENDING, ""),
        (line("CONFIGURING"), "", JobState.PENDING, ""),
        (line("RUNNING"), "", JobState.RUNNING, ""),
        (line("COMPLETING", "139:0"), "", JobState.RUNNING, ""),
        (line("SUSPENDED"), "", JobState.RUNNING, ""),
        (line("COMPLETED"), "", JobState.SUCCEEDED, ""),
        (line("FAILED", "1:0", reason="NonZeroExitCode"), "", JobState.FAILED, "exit code 1"),
        (line("FAILED", "139:0"), "", JobState.FAILED, "signal 11 (SIGSEGV)"),
        (line("FAILED", "0:11", reason="JobLaunchFailure"), "", JobState.FAILED, "signal 11 (SIG"),
        (line("FAILED", "137:0"), "", JobState.FAILED, "signal 9 (SIGKILL)"),
        (line("FAILED", "0:9", reason="JobLaunchFailure"), MEMORY_KILL, JobState.FAILED, "out of"),
        (line("FAILED", "137:0"), MEMORY_KILL, JobState.FAILED, "out of memory"),
        (line("FAILED", "1:0"), MEMORY_KILL, JobState.FAILED, "exit code 1"),
        (line("FAILED", "0:53"), "", JobState.FAILED, "cannot write the log /jobs of us/7_0"),
        (line("FAILED", reason="launch_failed"), "", JobState.FAILED, "launch_failed"),
        (line("OUT_OF_MEMORY", "0:125"), "", JobState.FAILED, "out of memory"),
        (line("TIMEOUT", "0:15", limit="00:01:00"), "", JobState.FAILED, "time limit of 1 min"),
        (line("TIMEOUT", limit="1-02:00:00"), "", JobState.FAILED, "time limit of 1560 min"),
        (line("CANCELLED", "0:15"), "", JobState.CANCELLED, ""),
        (line("NODE_FAIL"), "", JobState.LOST, "node failed"),
        (line("PREEMPTED", "0:15"), "", JobState.LOST, "preempted"),
    ],
)
def test_states_and_reasons(shown: str, stderr: str, state: JobState, reason: str) -> None:
    status = job_status(shown, stderr)

    assert status.state is state
    assert reason in status.reason
    assert bool(status.reason) == bool(reason)


def test_a_job_that_slurm_starts_again_after_a_preemption_has_one_end(tmp_path: Path) -> None:
    runner = SlurmRunner("cluster", SlurmSettings(folder=str(tmp_path)))
    job = SlurmJob("step-1a2b-1", id="7", runner=runner, folder=tmp_path)
    seen = []

    for shown in (
        line("RUNNING", requeue=1),
        line("PREEMPTED", "0:15", requeue=1),
        line("PENDING", reason="BeginTime", requeue=1, restarts=1),
        line("RUNNING", requeue=1, restarts=1),
        line("COMPLETED", requeue=1, restarts=1),
    ):
        job.report(job_status(shown))
        seen.append(job.status.state)

    running = JobState.RUNNING
    assert seen == [running, JobState.PENDING, JobState.PENDING, running, JobState.SUCCEEDED]
    assert job.status == JobStatus(JobState.SUCCEEDED)


@pytest.mark.parametrize(
    ("config", "identity"),
    [
        ("ClusterName = big\nPrivateData             = none", "slurm big"),
        ("ClusterName = big\nPrivateData = nodes,jobs", "slurm big, jobs of uid 1234 only"),
        ("ClusterName = big\nPrivateData = all", "slurm big, jobs of uid 1234 only"),
        ("ClusterName = small\nPrivateData = accounts,users", "slurm small"),
    ],
)
def test_jobs_are_of_a_cluster_and_of_a_user_where_others_do_not_see_them(
    config: str, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(slurm_tools, "ask_slurm", lambda *command: asked.append(command) or config)
    runner = SlurmRunner("cluster", SlurmSettings(folder="/jobs"))

    assert runner.engine == identity
    assert runner.engine == identity
    assert asked == [("scontrol", "show", "config")]


@pytest.mark.parametrize(
    "parameters",
    [
        {"clusters": "other"},
        {"cluster-constraint": "other"},
        {"array": "0-3"},
        {"job_name": "mine"},
        {"output": "/dev/null"},
        {"error": "/dev/null"},
        {"wait": True},
        {"quiet": True},
        {"test-only": True},
        {"additional_parameters": {"clusters": "other"}},
    ],
    ids=str,
)
def test_parameters_that_the_runner_cannot_work_with_are_refused(
    parameters: dict[str, Any],
) -> None:
    config = RoutingConfig(
        runners={"cluster": {"slurm": {"folder": "/jobs", "parameters": parameters}}}
    )
    option = next(iter(parameters.get("additional_parameters", parameters)))

    with pytest.raises(RoutingError, match=rf"runners\.cluster\.slurm: (.|\n)*leave out {option}:"):
        Routing(config)


@pytest.mark.parametrize(
    ("files", "outcome"),
    [
        ([], None),
        (["ended-0-1-0"], JobStatus(JobState.SUCCEEDED)),
        (["ended-0-2-0"], None),
        (["ended-0-2-0", "ended-1-2-0"], JobStatus(JobState.SUCCEEDED)),
        (["ended-0-2-0", "ended-1-2-1"], JobStatus(JobState.FAILED, "exit code 1")),
    ],
    ids=str,
)
@pytest.mark.parametrize("state", ["PENDING", "COMPLETING", "RUNNING"])
def test_a_job_has_ended_when_each_of_its_ranks_has(
    files: list[str],
    outcome: JobStatus | None,
    state: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(tool: str, *arguments: str) -> str:
        return f"7 {state}\n" if tool == "squeue" else ""

    for name in files:
        tmp_path.joinpath(name).touch()
    monkeypatch.setattr(slurm, "ask_slurm", answer)
    runner = SlurmRunner("cluster", SlurmSettings(folder=str(tmp_path)))
    job = SlurmJob("step-1", id="7", runner=runner, folder=tmp_path)
    running = JobStatus(JobState.PENDING if state == "PENDING" else JobState.RUNNING)

    assert runner.poller.ask([job]) == {"step-1": running}
    monkeypatch.setattr(slurm, "_STANDS_S", 0.0)
    # In a job that runs, more than the function may be left to do.
    expected = running if outcome is None or state == "RUNNING" else outcome
    assert runner.poller.ask([job]) == {"step-1": expected}


def refusal(request: Request, path: str = "s3://bucket/step", **settings: Any) -> str | None:
    step = StepSpec("step", fn=write, override_output_path=path)
    return SlurmRunner("cluster", SlurmSettings(folder="/jobs", **settings)).refuses(step, request)


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (Request(ResourceConfig.with_tpu("v5p-8")), "TPUs (device v5p-8)"),
        (Request(ResourceConfig(image="python:3.11")), "image='python:3.11'"),
        (Request(ResourceConfig(zone="here")), "zone='here'"),
        (Request(ResourceConfig(regions=["here"])), "regions=['here']"),
        (Request(ResourceConfig(target_cluster="big")), "target_cluster='big'"),
        (Request(ResourceConfig(container_profile="gvisor")), "container_profile='gvisor'"),
        (Request(pip_packages=["torch"]), "pip_packages=['torch']"),
        (Request(pip_dependency_groups=["gpu"]), "pip_dependency_groups=['gpu']"),
        (Request(env_vars={"A-B": "1"}), "environment variable 'A-B'"),
    ],
)
def test_what_slurm_cannot_honour_is_refused_by_name(request_: Request, named: str) -> None:
    assert named in (refusal(request_) or "")


def test_anything_else_is_taken() -> None:
    assert refusal(Request()) is None
    assert refusal(Request(ResourceConfig(cpu=99, disk="9t", replicas=9, regions=["*"]))) is None
    assert refusal(Request(ResourceConfig.with_gpu("H100", count=8)), path="/data/step") is None


def test_a_local_path_is_refused_where_the_nodes_do_not_see_this_disk() -> None:
    assert "/data/step" in (refusal(Request(), "/data/step", shared_disk=False) or "")
    assert refusal(Request(), "s3://bucket/step", shared_disk=False) is None


@pytest.fixture(autouse=True)
def _with_or_without_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchExecutor, "affinity", classmethod(lambda cls: 1))


def script(request: Request, **settings: Any) -> list[str]:
    """The lines of the script that sbatch would get."""
    executor = BatchExecutor("/jobs/name")
    parameters = batch_parameters("name", SlurmSettings(folder="/jobs", **settings), request)
    executor.update_parameters(**parameters)
    return executor._make_submission_file_text("run-the-step", "id").splitlines()


def options(request: Request, **settings: Any) -> set[str]:
    lines = script(request, **settings)
    return {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}


def test_resources_become_options_of_sbatch() -> None:
    asked = options(
        Request(ResourceConfig.with_gpu("H100", 8, cpu=2.5, ram="1.5g", disk="1t", replicas=3)),
        partition="gpu",
        account="me",
        time_min=90,
    )

    assert asked > {
        *("job-name=name", "partition=gpu", "account=me", "time=90", "no-requeue"),
        *("nodes=3", "ntasks-per-node=1", "cpus-per-task=3", "mem=1536M", "tmp=1048576M"),
        "gpus-per-node=h100:8",
    }


def test_nothing_is_asked_that_nobody_has_asked_for() -> None:
    names = {option.partition("=")[0] for option in options(Request())}

    assert names == {*("job-name", "nodes", "no-requeue", "signal", "open-mode", "output", "error")}


def test_the_disk_that_every_request_has_asks_for_no_special_node() -> None:
    assert not any("tmp" in option for option in options(Request(ResourceConfig())))


def test_parameters_override_what_is_derived() -> None:
    request = Request(ResourceConfig(ram="2g", disk="1t"))
    asked = options(
        request,
        parameters={"mem": "9G", "tmp": None, "qos": "high", "cpus-per-task": 7, "requeue": True},
    )

    assert asked > {"mem=9G", "qos=high", "cpus-per-task=7", "requeue"}
    assert not any(option.startswith("tmp") for option in asked)
    [command] = [text for text in script(request) if text.endswith("run-the-step")]
    assert "srun" not in command
    [command] = [
        text
        for text in script(request, parameters={"ntasks_per_node": 2})
        if text.endswith("run-the-step")
    ]
    assert "srun" in command
    assert "--kill-on-bad-exit=1 --cpus-per-task=1" in command


def test_the_environment_is_quoted_and_the_steps_own_counts() -> None:
    lines = script(
        Request(env_vars={"WORD": "it's $HOME", "BOTH": "step"}),
        env={"BOTH": "runner"},
        setup=["module load cuda"],
    )

    assert "export WORD='it'\"'\"'s $HOME'" in lines
    assert "export BOTH=step" in lines
    assert lines.index("module load cuda") < lines.index("export BOTH=step")
