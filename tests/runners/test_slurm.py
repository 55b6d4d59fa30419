"""What is special about Slurm, on a real one."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import step_functions
from helpers.cache import result_of
from helpers.processes import is_dead, wait_until
from helpers.slurm_server import (
    SLOTS,
    SMALL,
    SlurmServer,
    end,
    log_of,
    step_of,
    submit,
)
from helpers.step_functions import beside, wait_for
from marin_dagster import ResourceConfig, remote
from marin_dagster.cache import OutputDir, read_record
from marin_dagster.errors import EngineError
from marin_dagster.runners import JobState, JobStatus, slurm
from marin_dagster.runners.payload import read_fault
from marin_dagster.runners.slurm import SlurmJob, SlurmRunner
from marin_dagster.runners.slurm_tools import job_field, show_job

WHOLE_NODE = ResourceConfig(cpu=SLOTS, ram="512m")


@pytest.fixture
def runner(make: Callable[..., SlurmRunner]) -> SlurmRunner:
    return make()


def test_a_jobs_files_go_when_it_has_succeeded_and_its_log_is_read(runner: SlurmRunner) -> None:
    step = step_of(step_functions.write)
    job = submit(runner, step)

    assert end(job).state is JobState.SUCCEEDED
    assert job.folder.exists()
    log = log_of(job)

    assert sorted(log.splitlines()) == ["on stderr", "on stdout"]
    assert not job.folder.exists()
    assert result_of(step)["pid"] != os.getpid()


def test_a_failed_jobs_files_stay(runner: SlurmRunner) -> None:
    step = step_of(step_functions.raise_error)
    job = submit(runner, step)

    assert end(job) == JobStatus(JobState.FAILED, "exit code 1")
    assert "LookupError: no such corpus" in log_of(job)

    assert list(job.folder.glob("*_log.err"))
    assert job.folder.stat().st_mode & 0o777 == 0o700
    fault = read_fault(OutputDir.at(step.output_path), job.name)
    assert fault is not None
    assert fault.type == "LookupError"


def test_cancel_reaches_processes_that_have_left_the_group(runner: SlurmRunner) -> None:
    def build(output_path: str) -> None:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        Path(output_path, "pids").write_text(f"{os.getpid()} {child.pid}")
        child.wait()

    step = step_of(build)
    job = submit(runner, step)
    pids = Path(step.output_path, "pids")
    wait_for(pids)

    job.cancel()
    assert end(job).state is JobState.CANCELLED
    job.cancel()

    assert all(is_dead(int(pid)) for pid in pids.read_text().split())


def test_attach_finds_waiting_running_and_ended_jobs_with_their_logs(
    runner: SlurmRunner, make: Callable[..., SlurmRunner]
) -> None:
    def build(output_path: str) -> None:
        print("begun")
        wait_for(beside(output_path, "go"))
        raise LookupError("gone")

    step = step_of(build, resources=WHOLE_NODE)
    first, second = submit(runner, step, "step-1"), submit(runner, step, "step-2")
    wait_until(lambda: first.status.state is JobState.RUNNING)
    # A later run knows nothing but the names, and may have another folder.
    later = make(folder="/elsewhere")

    running, waiting = later.attach("step-1"), later.attach("step-2")

    assert running is not None
    assert waiting is not None
    assert (running.id, waiting.id) == (first.id, second.id)
    assert running.status.state is JobState.RUNNING
    assert waiting.status.state is JobState.PENDING
    assert next(running.logs()) == ("stdout", "begun\n")
    waiting.cancel()
    assert end(waiting).state is JobState.CANCELLED
    beside(step.output_path, "go").write_text("go")
    assert end(running).state is JobState.FAILED
    ended = make().attach("step-1")
    assert ended is not None
    assert ended.status == JobStatus(JobState.FAILED, "exit code 1")
    assert "LookupError: gone" in log_of(ended)
    assert later.attach("step-3") is None


def test_of_two_jobs_with_one_name_the_newest_counts(
    runner: SlurmRunner, make: Callable[..., SlurmRunner]
) -> None:
    end(submit(runner, step_of(step_functions.raise_error)))
    second = submit(make(folder=f"{runner.settings.folder}-2"), step_of(step_functions.write))
    end(second)

    found = runner.attach("step-1")

    assert found is not None
    assert found.id == second.id
    assert found.status.state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    "environment",
    [
        {"SBATCH_TIMELIMIT": "1"},
        {"SBATCH_MEM_PER_NODE": "100"},
        {"SBATCH_MEM_PER_CPU": "100"},
        {"SBATCH_OUTPUT": "/elsewhere/log"},
        {"SBATCH_REQUEUE": "1"},
        {"SBATCH_JOB_NAME": "other"},
        {"SBATCH_ARRAY_INX": "0-3"},
        {"SBATCH_PARTITION": "urgent"},
        {"SBATCH_CLUSTERS": "other"},
        {"SLURM_CLUSTERS": "other"},
        {"SQUEUE_PARTITION": "urgent"},
        {"SCANCEL_STATE": "RUNNING"},
        {"SCANCEL_INTERACTIVE": "true"},
    ],
    ids=lambda environment: "+".join(environment),
)
def test_variables_of_slurms_tools_in_the_run_worker_change_nothing(
    make: Callable[..., SlurmRunner],
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
) -> None:
    runner = make(parameters={"hold": True}, time_min=90)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    job = submit(runner, step_of(step_functions.write))

    found = runner.attach("step-1")

    assert found is not None
    assert found.id == job.id
    assert found.folder == job.folder
    shown = show_job(job.id)
    assert shown is not None
    names = ("TimeLimit", "Partition", "MinMemoryNode", "Requeue", "ArrayJobId", "StdOut")
    assert [job_field(shown, name) for name in names] == [
        *("01:30:00", "main", "512M", "0", ""),
        str(job.folder / f"{job.id}_0_log.out"),
    ]
    job.cancel()
    assert end(job).state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("fn", "status"),
    [
        (step_functions.write, JobStatus(JobState.SUCCEEDED)),
        (step_functions.raise_error, JobStatus(JobState.FAILED, "exit code 1")),
    ],
    ids=["well", "badly"],
)
def test_a_job_that_stays_completing_has_ended(
    server: SlurmServer,
    runner: SlurmRunner,
    monkeypatch: pytest.MonkeyPatch,
    fn: Callable[[str], Any],
    status: JobStatus,
) -> None:
    monkeypatch.setattr(slurm, "_STANDS_S", 0.5)
    step = step_of(fn)
    server.hold.touch()
    try:
        job = submit(runner, step)

        assert end(job) == status
        assert "COMPLETING" in server.ask("squeue", "--noheader", "--format=%T")
    finally:
        server.hold.unlink()
    assert (read_record(OutputDir.at(step.output_path)) is not None) == (fn is step_functions.write)


def test_a_job_that_waits_to_start_again_after_its_end_has_ended(
    server: SlurmServer, make: Callable[..., SlurmRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_STANDS_S", 0.5)
    step = step_of(step_functions.write)
    first = submit(make(parameters={"requeue": True}), step)
    end(first)
    server.ask("scontrol", "requeuehold", first.id)
    server.wait("the job in the queue", lambda: "PENDING" in server.ask("squeue", "-ho", "%T"))

    job = make().attach("step-1")

    assert job is not None
    assert job.status.state is JobState.PENDING
    assert end(job) == JobStatus(JobState.SUCCEEDED)
    assert "JobState=CANCELLED" in (show_job(job.id) or "")


def test_a_job_of_another_user_is_found_and_watched(
    server: SlurmServer, runner: SlurmRunner, tmp_path: Path
) -> None:
    script = ("--uid=nobody", "--job-name=step-1", f"--output={tmp_path}/log", "--wrap=true")
    assert server.ask("sbatch", "--hold", *script)

    job = runner.attach("step-1")

    assert job is not None
    assert runner.poller.ask([job]) == {"step-1": JobStatus(JobState.PENDING)}
    job.cancel()
    assert end(job).state is JobState.CANCELLED


def test_a_log_that_cannot_be_read_is_named(runner: SlurmRunner, tmp_path: Path) -> None:
    job = SlurmJob("step-1", id="7", runner=runner, folder=tmp_path / "of another")
    job.report(JobStatus(JobState.FAILED))

    assert f"cannot read {tmp_path / 'of another'}, which has the log of job 7" in log_of(job)


def test_the_engine_of_a_note_is_the_cluster(runner: SlurmRunner) -> None:
    assert runner.engine == "slurm test"


def test_a_job_that_makes_way_for_a_more_urgent_one_is_lost(
    runner: SlurmRunner, make: Callable[..., SlurmRunner]
) -> None:
    step = step_of(step_functions.wait_to_go, resources=WHOLE_NODE)
    job = submit(runner, step)
    wait_for(Path(step.output_path, "pids"))

    urgent = submit(
        make(partition="urgent"),
        step_of(step_functions.write, resources=WHOLE_NODE, hash_attrs={"other": 1}),
        "urgent-1",
    )

    assert end(job) == JobStatus(JobState.LOST, "preempted")
    assert end(urgent).state is JobState.SUCCEEDED


def test_a_job_that_slurm_has_forgotten_has_no_status(runner: SlurmRunner, tmp_path: Path) -> None:
    forgotten = SlurmJob("step-1", id="999999", runner=runner, folder=tmp_path)

    assert runner.poller.ask([forgotten]) == {}
    forgotten.cancel()


def test_a_name_that_was_used_before_is_refused(runner: SlurmRunner) -> None:
    first = submit(runner, step_of(step_functions.raise_error))

    with pytest.raises(EngineError, match="exists"):
        submit(runner, step_of(step_functions.write))

    assert end(first).state is JobState.FAILED
    assert first.folder.exists()


def test_what_the_cluster_does_not_have_is_an_error_that_leaves_nothing(
    runner: SlurmRunner,
) -> None:
    with pytest.raises(EngineError, match=r"step-1 was not submitted(.|\n)*Memory spec"):
        submit(runner, step_of(step_functions.write, resources=ResourceConfig(ram="1t")))

    assert list(Path(runner.settings.folder).iterdir()) == []
    assert runner.attach("step-1 of nobody") is None


def test_a_controller_that_does_not_answer_is_an_error(
    server: SlurmServer, runner: SlurmRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_of(step_functions.wait_to_go)
    job = submit(runner, step)
    wait_for(Path(step.output_path, "pids"))
    right = os.environ["SLURM_CONF"]
    monkeypatch.setenv("SLURM_CONF", str(server.unreachable()))

    with pytest.raises(EngineError, match="Unable to contact slurm controller"):
        submit(runner, step, "step-2")
    with pytest.raises(EngineError, match="Unable to contact slurm controller"):
        runner.attach("step-1")
    with pytest.raises(EngineError, match="Unable to contact slurm controller"):
        job.cancel()
    wait_until(lambda: job.trouble is not None)
    assert job.status.state is JobState.RUNNING

    monkeypatch.setenv("SLURM_CONF", right)
    beside(step.output_path, "go").write_text("go")
    assert end(job).state is JobState.SUCCEEDED
    assert job.trouble is None


def test_without_slurms_commands_the_error_says_so(
    runner: SlurmRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_of(step_functions.write)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "/nowhere")

        with pytest.raises(EngineError, match="sbatch and srun were not found"):
            submit(runner, step)
        with pytest.raises(EngineError, match="squeue was not found"):
            runner.attach("step-1")


def test_the_environment_and_the_set_up_reach_the_job(
    make: Callable[..., SlurmRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    @remote(resources=SMALL, env_vars={"OF_STEP": "it's $HOME", "BOTH": "step"})
    def build(output_path: str) -> dict[str, Any]:
        names = ("OF_STEP", "BOTH", "OF_RUNNER", "OF_RUN_WORKER", "OF_SETUP")
        return {name: os.environ.get(name) for name in names} | {
            "ntasks": os.environ.get("SLURM_NTASKS")
        }

    monkeypatch.setenv("OF_RUN_WORKER", "yes")
    # A run worker that is itself a job of Slurm, of another shape.
    monkeypatch.setenv("SLURM_NTASKS", "64")
    step = step_of(build, resources=None)
    job = submit(
        make(env={"OF_RUNNER": "yes", "BOTH": "runner"}, setup=["export OF_SETUP=$((40 + 2))"]),
        step,
    )

    assert end(job).state is JobState.SUCCEEDED
    assert result_of(step) == {
        "OF_STEP": "it's $HOME",
        "BOTH": "step",
        "OF_RUNNER": "yes",
        "OF_RUN_WORKER": "yes",
        "OF_SETUP": "42",
        "ntasks": "1",
    }


def test_a_function_from_a_file_that_the_node_cannot_import(
    runner: SlurmRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "helper.py").write_text("WORD = 'helped'\n")
    source = tmp_path / "location_of_user.py"
    source.write_text(
        "def word():\n"
        "    import helper\n"
        "    return helper.WORD\n"
        "def build(output_path):\n"
        "    return {'word': word()}\n"
    )
    spec = importlib.util.spec_from_file_location("location_of_user", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "location_of_user", module)
    spec.loader.exec_module(module)
    # What a function imports when it runs is found where this process would find it.
    monkeypatch.syspath_prepend(tmp_path / "there")
    step = step_of(module.build)
    job = submit(runner, step)
    source.unlink()

    assert end(job).state is JobState.SUCCEEDED, log_of(job)
    assert result_of(step) == {"word": "helped"}
