"""A run that is cancelled in the middle keeps no slot of a pool."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.dagster_server import DIRECTLY, DagsterServer, running_server
from helpers.processes import wait_until

LOCATION = Path(__file__).with_name("pool_location.py")
SLOTS = 2
SETTINGS = f"""{DIRECTLY}
concurrency: {{pools: {{default_limit: {SLOTS}}}}}
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def server(tmp_path: Path, store: Path) -> Iterator[DagsterServer]:
    home = tmp_path / "dagster"
    with running_server(home, LOCATION, settings=SETTINGS, MARIN_PREFIX=str(store)) as running:
        yield running


def started(store: Path) -> list[int]:
    """The processes of the steps that have started."""
    pids = [file.read_text() for file in store.glob("pooled/*.pid")]
    return [int(pid) for pid in pids if pid]


def slots_taken(server: DagsterServer) -> int:
    limits = server.query(
        "{ instance { concurrencyLimits { concurrencyKey activeSlotCount pendingStepCount } } }"
    )["instance"]["concurrencyLimits"]
    return sum(limit["activeSlotCount"] + limit["pendingStepCount"] for limit in limits)


def check_the_next_run_gets_them(server: DagsterServer, store: Path) -> None:
    wait_until(lambda: slots_taken(server) == 0, "the slots to be free")
    for file in store.glob("pooled/*.pid"):
        file.unlink()
    run = server.launch("materialize_steps")
    wait_until(lambda: len(started(store)) == SLOTS, "the next run to get the slots")
    store.joinpath("go").touch()
    assert server.wait(run) == "SUCCESS"
    assert slots_taken(server) == 0


def begin(server: DagsterServer, store: Path) -> str:
    """Start a run whose first steps hold all slots."""
    run = server.launch("materialize_steps")
    wait_until(lambda: len(started(store)) == SLOTS, "the first steps to start")
    wait_until(lambda: slots_taken(server) == 5, "the others to wait for a slot")
    return run


def test_a_cancelled_run_gives_its_slots_back(server: DagsterServer, store: Path) -> None:
    run = begin(server, store)

    server.terminate(run)

    assert server.wait(run) == "CANCELED"
    assert slots_taken(server) == 0
    check_the_next_run_gets_them(server, store)
