"""What the Fray runner does when the controller dies, when Fray is missing, and what it refuses."""

import sys
import threading
import time
from pathlib import Path
from typing import Any

import fray.types
import pytest
from fray.local_backend import LocalClient
from fray_steps import (
    end_of,
    log_of,
    new_runner,
    sleep_with_a_child,
    started,
    step_at,
    submit,
)
from iris.rpc import job_pb2
from iris_server import iris_server

from helpers.processes import wait_until
from marin_dagster import ResourceConfig, StepSpec
from marin_dagster.errors import EngineError, RoutingError
from marin_dagster.runners import FraySettings, JobState, Request, StepCall
from marin_dagster.runners.fray import FrayRunner
from marin_dagster.runners.iris_engine import why_failed

pytestmark = pytest.mark.interop

NOWHERE = "http://127.0.0.1:9"


def test_a_controller_that_dies_and_comes_back_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marin_dagster.runners.polling._UNKNOWN_S", 3.0)
    monkeypatch.setattr("marin_dagster.runners.iris_compat._PATIENCE_S", 1.0)
    with iris_server() as server:
        runner = new_runner(server)
        step = step_at(tmp_path, sleep_with_a_child)
        job = submit(runner, step)
        wait_until(lambda: started(step), "the step to start")
        wait_until(lambda: job.status.state is JobState.RUNNING, "the job to run")
        log = job.logs()
        assert next(log) == ("stdout", "sleeping\n")

        server.kill()

        wait_until(lambda: job.trouble is not None, "the runner to notice")
        assert not job.status.state.final
        with pytest.raises(EngineError, match=job.name):
            runner.attach(job.name)
        with pytest.raises(EngineError, match="cannot cancel"):
            job.cancel()
        with pytest.raises(EngineError, match="does not answer"):
            submit(runner, step)

        server.start()

        # A controller on this machine keeps nothing.
        assert runner.attach(job.name) is None
        status = end_of(job)
        assert status.state is JobState.LOST
        assert "no longer knows" in status.reason
        assert job.trouble is None
        quick = step_at(tmp_path, lambda output_path: None)
        assert end_of(submit(runner, quick)).state is JobState.SUCCEEDED
        runner.close()


def refusal(settings: FraySettings, step: StepSpec, client: Any = None) -> str:
    request = Request.of(step)
    return FrayRunner("cluster", settings, client=client).refuses(step, request) or ""


def test_an_output_that_workers_cannot_see_is_refused(tmp_path: Path) -> None:
    apart, shared = FraySettings(address=NOWHERE), FraySettings(address=NOWHERE, shared_disk=True)
    on_disk = step_at(tmp_path)
    assert on_disk.output_path in refusal(apart, on_disk)
    assert "shared_disk" in refusal(apart, on_disk)
    assert refusal(shared, on_disk) == ""
    assert "memory" in refusal(shared, step_at("memory://store"))
    assert refusal(apart, step_at("s3://bucket/store")) == ""


@pytest.mark.parametrize(
    ("resources", "named"),
    [
        ({"container_profile": "NO_SUCH_PROFILE"}, "NO_SUCH_PROFILE"),
        ({"regions": ["*", "us-east1"]}, "us-east1"),
    ],
)
def test_what_iris_cannot_be_asked_for_is_refused(resources: dict[str, Any], named: str) -> None:
    settings = FraySettings(address=NOWHERE)
    assert named in refusal(settings, step_at("s3://bucket/store", **resources))


def test_every_field_of_ours_reaches_fray() -> None:
    settings = FraySettings(address=NOWHERE)
    asked = ResourceConfig.with_gpu(
        "H100",
        count=4,
        cpu=3,
        ram="5g",
        disk="7g",
        preemptible=False,
        regions=["us-east1"],
        zone="us-east1-b",
        target_cluster="other",
        replicas=2,
        device_alternatives=["H200"],
        image="registry/image",
        container_profile="CONTAINER_PROFILE_PRIVILEGED",
    )
    client = Deaf()
    step = StepSpec("train", fn=print, output_path_prefix="s3://b", resources=asked)
    with pytest.raises(EngineError, match="nobody is listening"):
        submit_request(FrayRunner("cluster", settings, client=client), step)
    (request,) = client.requests
    assert request.resources == fray.types.ResourceConfig.with_gpu(
        "H100",
        count=4,
        cpu=3,
        ram="5g",
        disk="7g",
        preemptible=False,
        regions=["us-east1"],
        zone="us-east1-b",
        target_cluster="other",
        replicas=2,
        device_alternatives=["H200"],
        image="registry/image",
        container_profile="CONTAINER_PROFILE_PRIVILEGED",
    )
    assert request.replicas == 2
    assert request.environment is not None
    assert list(request.environment.extras) == ["gpu"]  # as in Marin, when the step names none


@pytest.mark.parametrize(
    ("exit_code", "error", "expected"),
    [
        (137, "Exit code 137: OOM killed (container exceeded memory limit)", "out of memory"),
        (137, "OOMKilled", "out of memory"),
        (139, "Exit code 139: killed by SIGSEGV", "signal 11 (SIGSEGV)"),
        (-11, "Exit code: -11. stderr: bye", "signal 11 (SIGSEGV): bye"),
        (3, "Exit code: 3", "exit code 3"),
        (-1, "bundle cannot be fetched", "bundle cannot be fetched"),
        (0, "timed out", "timed out"),
    ],
)
def test_what_iris_says_about_a_failed_task_in_words(
    exit_code: int, error: str, expected: str
) -> None:
    # Workers that are processes of this machine do not limit memory; those in containers do.
    assert why_failed(job_pb2.TaskStatus(exit_code=exit_code, error=error)) == expected


def test_a_kill_without_a_word_may_be_memory() -> None:
    error = "Exit code 137: killed by SIGKILL (possibly OOM or resource limit)"
    reason = why_failed(job_pb2.TaskStatus(exit_code=137, error=error))
    assert "signal 9 (SIGKILL)" in reason
    assert "out of memory" in reason


def test_threads_of_this_process_are_no_engine(tmp_path: Path) -> None:
    step = step_at(tmp_path)
    settings = FraySettings(shared_disk=True)
    assert "LocalClient" in refusal(settings, step)  # the default
    assert "LocalClient" in refusal(settings, step, client=LocalClient())


def test_without_fray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_at("s3://bucket/store")
    runner = FrayRunner("cluster", FraySettings(address=NOWHERE))
    monkeypatch.setitem(sys.modules, "fray.iris_backend", None)
    assert "marin-dagster[fray]" in (runner.refuses(step, Request.of(step)) or "")
    with pytest.raises(RoutingError, match=r"marin-dagster\[fray\].*Python 3\.12"):
        submit_request(runner, step)


class Handle:
    """A job of another client: a thread that ends as the test wants."""

    def __init__(self, request: fray.types.JobRequest) -> None:
        self.job_id = f"other-{request.name}"
        self.state = fray.types.JobStatus.PENDING
        self.lines: tuple[str, ...] = ()

    def status(self) -> fray.types.JobStatus:
        return self.state

    def logs(self, max_lines: int = 0) -> tuple[str, ...]:
        return self.lines

    def terminate(self) -> None:
        self.state = fray.types.JobStatus.STOPPED


class Other:
    """A Fray client that is not Iris's."""

    def __init__(self) -> None:
        self.handles: list[Handle] = []

    def submit(self, request: fray.types.JobRequest, adopt_existing: bool = True) -> Handle:
        assert not adopt_existing
        self.handles.append(Handle(request))
        return self.handles[-1]


class Deaf(Other):
    """One that has lost its cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[fray.types.JobRequest] = []

    def submit(self, request: fray.types.JobRequest, adopt_existing: bool = True) -> Handle:
        self.requests.append(request)
        raise ConnectionError("nobody is listening")


def submit_request(runner: FrayRunner, step: StepSpec) -> Any:
    call = StepCall(print, step.name_with_hash, step.output_path, "job", None)
    return runner.submit("job", call, Request.of(step))


def test_another_client_is_asked_through_frays_protocol(tmp_path: Path) -> None:
    client = Other()
    runner = FrayRunner("cluster", FraySettings(), client=client)
    step = step_at(tmp_path)
    assert runner.refuses(step, Request.of(step)) is None

    job = submit_request(runner, step)
    (handle,) = client.handles
    assert job.id == "other-job"
    handle.state = fray.types.JobStatus.RUNNING
    wait_until(lambda: job.status.state is JobState.RUNNING, "the job to run")
    assert runner.attach("job") is job
    assert runner.attach("unknown") is None

    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(log_of(job)))
    reader.start()
    handle.lines = ("one",)
    time.sleep(0.3)
    handle.lines = ("one", "two")
    handle.state = fray.types.JobStatus.FAILED
    assert end_of(job).state is JobState.FAILED
    reader.join()
    assert lines == ["one\ntwo\n"]

    second = submit_request(runner, step)
    second.cancel()
    assert end_of(second).state is JobState.CANCELLED
