"""What the Fray runner asks of a real Iris controller, and through whose client."""

import os
import uuid
from pathlib import Path
from typing import Any

import fray.types
import pytest
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from fray.current_client import set_current_client
from fray.iris_backend import FrayIrisClient
from fray_steps import (
    SMALL,
    end_of,
    result_of,
    sleep_with_a_child,
    step_at,
    submit,
)
from iris_server import IrisServer
from marin.execution.remote import RemoteCallable
from marin.execution.step_spec import StepSpec as MarinStepSpec

from marin_dagster import ResourceConfig, StepSpec, remote
from marin_dagster.errors import EngineError
from marin_dagster.runners import FraySettings, JobState, Request, StepCall
from marin_dagster.runners.fray import FrayRunner

pytestmark = pytest.mark.interop


class Remembering(FrayIrisClient):
    """Fray's client, with the requests that it was given."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.requests: list[fray.types.JobRequest] = []

    def submit(self, request: fray.types.JobRequest, adopt_existing: bool = True) -> Any:
        self.requests.append(request)
        return super().submit(request, adopt_existing)


def test_what_a_wrapper_says_reaches_the_job_through_a_client_given_in_code(
    iris: IrisServer, tmp_path: Path
) -> None:
    @remote(
        resources=ResourceConfig(**SMALL),
        env_vars={"FROM_STEP": "step", "FROM_BOTH": "step"},
        pip_dependency_groups=["tokenize"],
        pip_packages=["nltk"],
    )
    def build(output_path: str) -> dict[str, str]:
        return {name: os.environ[name] for name in ("FROM_STEP", "FROM_BOTH", "FROM_RUNNER")}

    step = StepSpec("corpus", fn=build, output_path_prefix=str(tmp_path))
    client = Remembering(iris.url)
    env = {"FROM_RUNNER": "runner", "FROM_BOTH": "runner"}
    runner = FrayRunner("cluster", FraySettings(env=env, shared_disk=True), client=client)

    assert end_of(submit(runner, step)).state is JobState.SUCCEEDED

    assert result_of(step) == {"FROM_STEP": "step", "FROM_BOTH": "step", "FROM_RUNNER": "runner"}
    (request,) = client.requests
    assert request.environment is not None
    assert list(request.environment.extras) == ["tokenize"]
    assert list(request.environment.pip_packages) == ["nltk"]
    assert (request.max_retries_failure, request.max_retries_preemption) == (0, 0)
    assert request.resources == fray.types.ResourceConfig(**SMALL)
    runner.close()
    assert client.submit(request_for_nothing()).job_id  # the client stays open


def request_for_nothing() -> fray.types.JobRequest:
    return fray.types.JobRequest(
        name=f"nothing-{uuid.uuid4().hex[:8]}",
        entrypoint=fray.types.Entrypoint.from_callable(print),
        resources=fray.types.ResourceConfig(**SMALL),
    )


@pytest.mark.parametrize("own", [True, False], ids=["step's resources", "wrapper's resources"])
def test_marins_own_step_with_frays_own_resources(
    iris: IrisServer, tmp_path: Path, own: bool
) -> None:
    resources = fray.types.ResourceConfig(**SMALL, regions=None)
    step = MarinStepSpec(
        name="marin/step",
        fn=RemoteCallable(
            lambda output_path: {"word": os.environ["WORD"]}, resources, env_vars={"WORD": "kept"}
        ),
        resources=resources if own else None,
        output_path_prefix=str(tmp_path),
    )
    client = Remembering(iris.url)
    runner = FrayRunner("cluster", FraySettings(shared_disk=True), client=client)
    assert runner.refuses(step, Request.of(step)) is None

    assert end_of(submit(runner, step)).state is JobState.SUCCEEDED

    assert result_of(step) == {"word": "kept"}
    assert client.requests[0].resources is resources


def test_the_callers_current_client_counts_when_no_other_is_given(
    iris: IrisServer, tmp_path: Path
) -> None:
    runner = FrayRunner("cluster", FraySettings(shared_disk=True))
    client = Remembering(iris.url)
    step = step_at(tmp_path, lambda output_path: {"word": "current"})
    with set_current_client(client):
        job = submit(runner, step)
        assert end_of(job).state is JobState.SUCCEEDED
        found = runner.attach(job.name)
    assert found is not None
    assert found.status.state is JobState.SUCCEEDED
    assert [request.name for request in client.requests] == [job.name]


def test_what_nothing_in_the_cluster_can_hold_is_refused_at_submission(
    runner: FrayRunner, tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match=r"cluster refused job .*memory: need 1073741824000"):
        submit(runner, step_at(tmp_path, print, ram="1000g"))
    assert runner.attach("corpus-make") is None


class LosesTheFirstAnswer:
    """A controller whose first answer about a new job does not arrive."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.launched = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stub, name)

    def launch_job(self, request: Any, timeout_ms: int | None = None) -> Any:
        self.launched += 1
        answer = self.stub.launch_job(request, timeout_ms=timeout_ms)
        if self.launched == 1:
            raise ConnectError(Code.UNAVAILABLE, "the line is dead")
        return answer


def test_a_submission_whose_answer_was_lost_is_the_same_job(
    iris: IrisServer, tmp_path: Path
) -> None:
    client = FrayIrisClient(iris.url)
    cluster: Any = client._iris._cluster_client
    cluster._client = LosesTheFirstAnswer(cluster._client)
    runner = FrayRunner("cluster", FraySettings(shared_disk=True), client=client)
    step = step_at(tmp_path, lambda output_path: {"word": "once"})

    assert end_of(submit(runner, step)).state is JobState.SUCCEEDED

    assert cluster._client.launched == 2
    assert result_of(step) == {"word": "once"}


def test_a_name_is_not_shared_with_an_earlier_job(runner: FrayRunner, tmp_path: Path) -> None:
    step = step_at(tmp_path, sleep_with_a_child)
    job = submit(runner, step)
    call = StepCall(print, step.name_with_hash, step.output_path, job.name, None)
    with pytest.raises(EngineError, match="refused job"):
        runner.submit(job.name, call, Request.of(step))
    job.cancel()
    end_of(job)


def test_a_function_of_a_file_that_workers_do_not_have(
    runner: FrayRunner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "only_here.py").write_text(
        "WORD = 'by value'\ndef helper():\n    return {'word': WORD}\n"
        "def build(output_path):\n    return helper()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    step = step_at(tmp_path, only_here.build)
    job = submit(runner, step)
    (tmp_path / "only_here.py").unlink()

    assert end_of(job).state is JobState.SUCCEEDED
    assert result_of(step) == {"word": "by value"}
