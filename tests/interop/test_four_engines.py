"""One run of one graph on four engines, launched in a real Dagster deployment."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from iris_server import IrisServer

from helpers.dagster_server import DagsterServer, running_server
from helpers.slurm_server import SlurmServer, slurm_or_skip

LOCATION = Path(__file__).with_name("four_engines_location.py")
ENGINES = ("here", "process", "slurm", "iris")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmServer]:
    with slurm_or_skip(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, store: Path, slurm: SlurmServer
) -> Iterator[DagsterServer]:
    home = tmp_path_factory.mktemp("dagster")
    # The cluster's own SLURM_CONF is in this process's environment.
    with running_server(home, LOCATION, MARIN_PREFIX=str(store)) as running:
        yield running


def test_four_steps_on_four_engines_in_one_run(
    server: DagsterServer, slurm: SlurmServer, iris: IrisServer, store: Path, tmp_path: Path
) -> None:
    config = {
        "runners": {
            "cluster": {"slurm": dict(slurm.settings(tmp_path / "jobs"))},
            "cloud": {"fray": {"address": iris.url, "shared_disk": True}},
        },
        "routes": [{"step": "slurm", "runner": "cluster"}, {"step": "iris", "runner": "cloud"}],
        "default_with_resources": "process",
    }

    run = server.launch("materialize_steps", {"execution": {"config": config}})

    assert server.wait(run) == "SUCCESS", server.log.read_text()[-4000:]
    [places] = store.glob("iris_*/places.txt")
    assert places.read_text() == "here\nprocess\nslurm\nhere\niris\n"
    found = {}
    for name in ENGINES:
        [record] = store.glob(f"{name}_*/.artifact.json")
        found[name] = json.loads(record.read_text())["result"]
    assert {name for name in ENGINES if found[name]["slurm"]} == {"slurm"}
    assert {name for name in ENGINES if found[name]["iris"]} == {"iris"}
    assert len({found[name]["pid"] for name in ENGINES}) == 4
    for name in ENGINES:
        stdout, _ = server.logs(run, name)
        assert f"{name} runs on" in stdout
    messages = [event.get("message") or "" for event in server.events(run)]
    for runner in ("process", "cluster", "cloud"):
        assert any(f"submitted to {runner} as job" in message for message in messages)
    assert not list(store.glob("*/.step_job.json"))
    assert not list(store.glob("*/.executor_status.lock"))
