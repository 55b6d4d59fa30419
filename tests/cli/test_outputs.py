"""``marin-dagster unlock``, ``invalidate`` and ``adopt``."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.conftest import Project
from helpers.processes import wait_until
from marin_dagster.cache.lease import Lease, format_lease, new_lease

GRAPH = ("-g", "pipeline.py:steps")
LOCK = ".executor_status.lock"
ADOPTING = """
from pathlib import Path
from marin_dagster import ArtifactStep, StepSpec
from pipeline import step
old = ArtifactStep.adopt("old/tokens", "2026.01.02", SOURCE)
given = StepSpec("given")
steps = [old, step("reader", given)]
"""


def locked(project: Project, store: Path, lease: Lease) -> Path:
    project("run", *GRAPH)
    [folder] = store.glob("model_*")
    (folder / ".executor_status").write_text("RUNNING")
    (folder / LOCK).write_bytes(format_lease(lease))
    return folder


@pytest.mark.parametrize("by_path", [False, True])
def test_a_dead_workers_lease_is_removed(by_path: bool, project: Project, store: Path) -> None:
    folder = locked(project, store, Lease("dead-worker", time.time() - 100))
    arguments = [str(folder)] if by_path else ["model", *GRAPH]

    found = project("unlock", "--json", *arguments)

    assert found.code == 0
    [output] = found.json["outputs"]
    assert output["changed"]
    assert "dead-worker, last heartbeat 10" in output["message"]
    assert not (folder / LOCK).exists()
    again = project("unlock", "--json", *arguments).json["outputs"][0]
    assert (again["changed"], again["message"]) == (False, "not locked")


def test_a_live_workers_lease_stays_unless_told(project: Project, store: Path) -> None:
    folder = locked(project, store, new_lease("live-worker"))
    kept = (folder / LOCK).read_bytes()

    refused = project("unlock", *GRAPH, "model")

    assert refused.code == 1
    assert "locked by live-worker, last heartbeat " in refused.out
    assert "it may be alive. Stop it first, or give --yes." in refused.out
    assert (folder / LOCK).read_bytes() == kept
    assert project("unlock", *GRAPH, "model", "--yes").code == 0
    assert not (folder / LOCK).exists()


def test_a_worker_whose_lease_was_removed_fails_and_overwrites_nothing(
    project: Project, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    (project.folder / "other.py").write_text(
        "import os, time\n"
        "from marin_dagster import StepSpec\n"
        "def wait(output_path):\n"
        f"    while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        "steps = [StepSpec('slow', fn=wait)]\n"
    )
    command = (sys.executable, "-m", "marin_dagster.cli", "run", "-g", "other.py:steps")
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: list(store.glob("slow_*/.executor_status")))
        assert project("unlock", "-g", "other.py:steps", "slow").code == 1
        assert project("unlock", "-g", "other.py:steps", "slow", "--yes").code == 0
        [folder] = store.glob("slow_*")
        (folder / ".executor_status").write_text("SUCCESS")  # another worker was quicker
        go.touch()
        text, _ = worker.communicate(timeout=60)
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert worker.returncode == 1
    assert "lost the lease" in text
    assert (folder / ".executor_status").read_text() == "SUCCESS"


def test_an_invalidated_output_is_built_again(project: Project, store: Path) -> None:
    project("run", *GRAPH)
    project.took()

    found = project("invalidate", "--json", "--yes", *GRAPH, "report", "raw").json

    assert [output["changed"] for output in found["outputs"]] == [True, True]
    assert list(store.glob("report_*/data.txt"))
    assert project("run", *GRAPH).code == 0
    assert project.took() == ["report"]  # nothing needs raw
    [raw] = store.glob("raw_*")
    again = project("invalidate", "--json", "--yes", str(raw)).json["outputs"][0]
    assert (again["changed"], again["message"]) == (False, "was not finished")


def test_invalidating_downstream(project: Project) -> None:
    project("run", *GRAPH)
    project.took()
    found = project("invalidate", "--json", "--yes", "--downstream", *GRAPH, "data/clean").json
    names = [output["step"].partition("_")[0] for output in found["outputs"]]
    assert names == ["data/clean", "model", "report"]
    project("run", *GRAPH)
    assert project.took() == names


@pytest.mark.parametrize(("answer", "invalidated"), [("y\n", True), ("n\n", False), ("", False)])
def test_invalidating_asks_first(
    answer: str, invalidated: bool, project: Project, store: Path
) -> None:
    project("run", *GRAPH)
    found = project("invalidate", *GRAPH, "model", stdin=answer)
    assert "Call these outputs unfinished?" in found.err
    assert found.code == (0 if invalidated else 1)
    assert bool(list(store.glob("model_*/.executor_status"))) != invalidated


def test_an_output_that_is_being_built_is_not_invalidated(project: Project, store: Path) -> None:
    folder = locked(project, store, new_lease("live-worker"))
    found = project("invalidate", *GRAPH, "model", "--yes")
    assert found.code == 1
    assert "is being built by live-worker" in found.out
    assert (folder / ".executor_status").read_text() == "RUNNING"
    assert (folder / LOCK).exists()


def test_adopted_data_is_registered(project: Project, store: Path, tmp_path: Path) -> None:
    source = tmp_path / "old-data"
    (project.folder / "other.py").write_text(ADOPTING.replace("SOURCE", repr(str(source))))
    graph = ("-g", "other.py:steps")

    missing = project("adopt", *graph)
    assert missing.code == 2
    assert f"adopts {source}, which does not exist" in missing.err

    source.mkdir()
    (source / "tokens.txt").write_text("a b")
    [output] = project("adopt", "--json", *graph).json["outputs"]
    assert (output["step"], output["changed"]) == ("old/tokens/2026.01.02", True)
    assert list(store.glob("old/tokens/2026.01.02/.artifact.json"))
    assert project("adopt", "--json", *graph).json["outputs"][0]["changed"] is False


def test_data_of_a_step_without_function_is_marked_as_complete(
    project: Project, store: Path, tmp_path: Path
) -> None:
    (project.folder / "other.py").write_text(ADOPTING.replace("SOURCE", repr(str(tmp_path))))
    graph = ("-g", "other.py:steps")
    assert "there is no data in" in project("adopt", *graph, "given").err
    path = Path(project("status", "--json", *graph, "given").json["steps"][0]["path"])
    path.mkdir(parents=True)
    (path / "data.txt").write_text("x")

    assert project("adopt", "--json", *graph, "given").json["outputs"][0]["changed"]

    assert (path / ".executor_status").read_text() == "SUCCESS"
    assert not (path / LOCK).exists()
    assert project("run", *graph, "--select", "reader").code == 0
    assert project.took() == ["reader"]


def test_a_step_that_runs_build_is_not_adopted(project: Project) -> None:
    found = project("adopt", *GRAPH, "model")
    assert found.code == 1
    assert "is built by runs" in found.err
    assert "adopts data" in project("adopt", *GRAPH).err
