"""A run worker killed with signal 9 at each point of a step's life; then a new run finishes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from worker import POINTS

WORKER = Path(__file__).with_name("worker.py")
TESTS = WORKER.parents[2]


def run_worker(point: str, home: Path) -> int:
    home.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, str(WORKER), point],
        env={**os.environ, "DAGSTER_HOME": str(home), "PYTHONPATH": str(TESTS)},
        check=False,
        timeout=120,
    ).returncode


@pytest.mark.parametrize("point", POINTS)
def test_the_next_run_finishes_with_the_right_result(
    point: str, tmp_path: Path, store: Path
) -> None:
    store.mkdir()
    home = tmp_path / "dagster"

    assert run_worker(point, home) == -signal.SIGKILL
    train = next(store.glob("train_*"))
    status = train / ".executor_status"
    finished = status.exists() and status.read_text() == "SUCCESS"
    # SUCCESS only ever stands beside a complete record.
    assert finished == (point == "before release")
    if finished:
        assert json.loads(train.joinpath(".artifact.json").read_text())["result"]

    assert run_worker("none", home) == 0

    calls = store.joinpath("calls").read_text().split()
    assert calls.count("prep") == 1
    assert calls.count("train") == (1 if point in ("before RUNNING", "before release") else 2)
    assert calls.count("evaluate") == 1
    for folder in store.glob("*_*"):
        assert folder.joinpath(".executor_status").read_text() == "SUCCESS"
        record = json.loads(folder.joinpath(".artifact.json").read_text())
        assert record["result"] == {"made_by": record["name"]}
        assert folder.joinpath("data.txt").read_text() == record["name"]
    leftover = [lock.parent for lock in store.glob("*/.executor_status.lock")]
    # A worker that died holding a finished output leaves a lease that nobody needs any more.
    assert leftover == ([train] if point == "before release" else [])


def test_the_next_run_says_who_was_killed(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.mkdir()
    home = tmp_path / "dagster"
    assert run_worker("in the function", home) == -signal.SIGKILL
    train = next(store.glob("train_*"))
    dead = json.loads(train.joinpath(".executor_status.lock").read_text())["worker_id"]

    assert run_worker("none", home) == 0

    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        event = instance.get_latest_materialization_event(dg.AssetKey("train"))
    assert event is not None
    assert event.asset_materialization is not None
    reason = str(event.asset_materialization.metadata["marin/reason"].value)
    assert reason.startswith(
        f"First build: no earlier output of train is known. Interrupted: {dead}, last seen 20"
    )
