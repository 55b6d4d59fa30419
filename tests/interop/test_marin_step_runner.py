"""Our ``StepRunner`` beside Marin's, on the same graphs and on the examples of Marin's guide."""

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from fray.current_client import set_current_client
from fray.iris_backend import FrayIrisClient
from fray.local_backend import LocalClient
from marin.execution.lazy import ArtifactStep as MarinArtifactStep
from marin.execution.step_runner import StepRunner as MarinRunner
from marin.execution.step_spec import StepSpec as MarinStep

from marin_dagster import ResourceConfig, StepRunner, StepSpec
from marin_dagster.errors import EngineTimeoutError, RoutingError, StepsFailedError

pytestmark = pytest.mark.interop


class Ran:
    """Which functions ran; some of them fail."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._mutex = threading.Lock()

    def function(self, name: str, *, fails: bool) -> Any:
        def build(output_path: str) -> None:
            with self._mutex:
                self.names.append(name)
            Path(output_path).mkdir(parents=True, exist_ok=True)
            if fails:
                raise RuntimeError(name)

        return build

    def take(self) -> list[str]:
        names, self.names = sorted(self.names), []
        return names


def random_steps(make: type[Any], seed: int, ran: Ran) -> tuple[list[Any], list[Any]]:
    """``(all steps, those asked for)`` of a random graph in either side's class."""
    dice = random.Random(seed)
    steps: list[Any] = []
    for number in range(14):
        deps = dice.sample(steps, min(len(steps), dice.randrange(3)))
        fails = dice.random() < 0.12
        name = f"step{number}"
        steps.append(make(name=name, deps=deps, fn=ran.function(name, fails=fails)))
    return steps, dice.sample(steps, 4)


def statuses(prefix: Path) -> dict[str, str]:
    return {file.parent.name: file.read_text() for file in prefix.glob("*/.executor_status")}


@pytest.mark.parametrize("seed", range(12))
def test_the_same_steps_run_and_end_the_same(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[Any] = []
    for side, make, runner in (
        ("ours", StepSpec, StepRunner()),
        ("marins", MarinStep, MarinRunner()),
    ):
        monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / side))
        ran = Ran()
        steps, wanted = random_steps(make, seed, ran)
        dice = random.Random(seed + 1000)
        for step in dice.sample(steps, 3):
            # Some outputs are there from before.
            Path(step.output_path).mkdir(parents=True)
            Path(step.output_path, ".executor_status").write_text("SUCCESS")
        failed: str | None = None
        try:
            runner.run(wanted)
        except Exception as error:
            failed = str(error).partition(":")[0]
        ends.append((ran.take(), statuses(tmp_path / side), failed))

    assert ends[0] == ends[1]


def test_the_same_number_of_failures_is_counted(tmp_path: Path) -> None:
    ran = Ran()
    bad = [StepSpec(f"bad{n}", fn=ran.function(f"bad{n}", fails=True)) for n in range(2)]

    with pytest.raises(StepsFailedError, match=r"^2 step\(s\) failed"):
        StepRunner().run([*bad, StepSpec("below", deps=bad, fn=ran.function("below", fails=False))])


def test_a_small_graph() -> None:
    def download(output_path: str) -> None:
        Path(output_path, "data.txt").write_text("some text")

    raw = StepSpec(name="raw", hash_attrs={"source": "web"}, fn=download)

    def tokenize(output_path: str) -> None:
        words = Path(raw.output_path, "data.txt").read_text().split()
        Path(output_path, "tokens.txt").write_text("\n".join(words))

    tokens = StepSpec(name="tokens", deps=[raw], fn=tokenize)

    results = StepRunner().run([tokens])

    assert Path(results[tokens].path, "tokens.txt").read_text() == "some\ntext"


def test_twenty_steps_with_at_most_five_at_once() -> None:
    mutex, now, most = threading.Lock(), [0], [0]

    def build(output_path: str) -> None:
        with mutex:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.02)
        with mutex:
            now[0] -= 1

    StepRunner().run([StepSpec(name=f"step{n}", fn=build) for n in range(20)], max_concurrent=5)

    assert most[0] <= 5


def test_a_step_with_resources() -> None:
    def train(output_path: str) -> dict[str, int]:
        Path(output_path, "model.txt").write_text("weights")
        return {"steps": 3}

    step = StepSpec(name="train", fn=train, resources=ResourceConfig(cpu=4, memory_gb=16))

    results = StepRunner().run([step])

    assert results[step].result == {"steps": 3}


class RefusingClient:
    """A Fray client that notes what it is asked for and takes nothing."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def submit(self, request: Any, adopt_existing: bool = True) -> Any:
        self.names.append(request.name)
        raise RuntimeError("disk full")


@pytest.mark.parametrize("how", ["given", "current"])
def test_frays_client_takes_steps_with_resources(how: str) -> None:
    client = RefusingClient()
    step = MarinStep(name="train", fn=print, resources=ResourceConfig(cpu=4))

    def submit() -> None:
        if how == "given":
            StepRunner(fray_client=client).run([step])
        else:
            with set_current_client(client):
                StepRunner().run([step])

    with pytest.raises(StepsFailedError) as raised:
        submit()

    assert "disk full" in str(raised.value.exceptions[0])
    assert len(client.names) == 1
    assert client.names[0].startswith("train-")


def test_a_runner_knows_whether_iris_workers_see_its_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_dagster.runners.iris_compat._PATIENCE_S", 0.1)
    nowhere = FrayIrisClient("http://127.0.0.1:9")
    step = StepSpec("train", fn=print, resources=ResourceConfig(cpu=4))

    with pytest.raises(RoutingError, match="shared_disk"):
        StepRunner(fray_client=nowhere).run([step])
    with pytest.raises(StepsFailedError) as raised:
        StepRunner(fray_client=nowhere, shared_disk=True).run([step])

    assert [type(error) for error in raised.value.exceptions] == [EngineTimeoutError]


@pytest.mark.parametrize("how", ["given", "current"])
def test_frays_local_client_takes_no_step(how: str) -> None:
    step = StepSpec("train", fn=lambda _: {"pid": os.getpid()}, resources=ResourceConfig(ram="1g"))

    if how == "given":
        with pytest.raises(RoutingError, match=r"LocalClient .* omit the StepRunner's fray_client"):
            StepRunner(fray_client=LocalClient()).run([step])
        return
    with set_current_client(LocalClient()):
        results = StepRunner().run([step])

    assert (results[step].result or {})["pid"] != os.getpid()


def test_marins_adopted_data_that_is_missing_stops_nothing_else() -> None:
    missing = MarinArtifactStep.adopt("missing", "2026.01.01", "nowhere")
    ran = Ran()
    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run([missing, StepSpec("other", fn=ran.function("other", fails=False))])
    assert [type(error) for error in raised.value.exceptions] == [FileNotFoundError]
    assert ran.take() == ["other"]
