"""A backfill of the points of a sweep: what the UI shows of each point, and one that failed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from helpers.dagster_server import DagsterServer, running_server
from helpers.processes import wait_until

LOCATION = Path(__file__).with_name("points_location.py")
POINTS = [f"lr-{number:03}" for number in range(4)]
BAD = POINTS[2]
# Named first, so that nothing else is started where there is none.
pytestmark = pytest.mark.usefixtures("browser")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that makes a point fail."""
    file = tmp_path_factory.mktemp("sweep") / "broken"
    file.write_text(BAD)
    return file


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, broken: Path) -> Iterator[DagsterServer]:
    variables = {
        "MARIN_PREFIX": str(tmp_path_factory.mktemp("store")),
        "SWEEP_BROKEN": str(broken),
        "SWEEP_POINTS": str(len(POINTS)),
    }
    with running_server(tmp_path_factory.mktemp("dagster"), LOCATION, **variables) as running:
        yield running


def partitions_page(page: Page, server: DagsterServer) -> None:
    page.goto(f"{server.url}/assets/train?view=partitions")


def counts(page: Page, **expected: int) -> None:
    """Expect how many partitions have each status, as the list of partitions counts them."""
    for status, number in expected.items():
        expect(page.get_by_text(f"{status} ({number})")).to_be_visible()


def test_one_point_of_a_backfill_fails_and_is_executed_again(
    page: Page, server: DagsterServer, broken: Path
) -> None:
    server.backfill(["train"], POINTS)
    wait_until(lambda: len(server.runs()) == len(POINTS), "the runs of the backfill", every_s=0.5)
    ended: dict[str, Any] = {run: server.wait(run) for run in server.runs()}
    assert sorted(ended.values()) == ["FAILURE", "SUCCESS", "SUCCESS", "SUCCESS"]

    partitions_page(page, server)
    counts(page, Materialized=3, Failed=1, Missing=0)

    broken.unlink()
    (failed,) = [run for run, status in ended.items() if status == "FAILURE"]
    assert server.wait(server.reexecute(failed)) == "SUCCESS"

    partitions_page(page, server)
    counts(page, Materialized=4, Failed=0, Missing=0)
