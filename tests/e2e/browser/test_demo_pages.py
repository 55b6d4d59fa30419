"""What a newcomer sees in the UI after ``make demo`` and ``make ui``."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from helpers.dagster_server import DagsterServer, running_server
from helpers.processes import wait_until
from language_reference.steps import build_steps

ROOT = Path(__file__).parents[3]
SETTINGS = (ROOT / "scripts" / "demo-instance.yaml").read_text()
JOB = "/locations/language_reference/jobs/materialize_steps"
# Named first, so that nothing else is started where there is none.
pytestmark = pytest.mark.usefixtures("browser")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterServer]:
    """The UI on an instance in which the demo has been run."""
    home, store = tmp_path_factory.mktemp("dagster"), tmp_path_factory.mktemp("store")
    home.joinpath("dagster.yaml").write_text(SETTINGS)
    variables = {"MARIN_PREFIX": str(store)}
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo.py")],
        env={**os.environ, **variables, "DAGSTER_HOME": str(home)},
        check=True,
    )
    workspace = Path("workspace.yaml")
    with running_server(home, workspace, settings=SETTINGS, folder=ROOT, **variables) as running:
        yield running


@pytest.fixture(scope="module")
def demo_run(server: DagsterServer) -> str:
    """The demo's run, before any test starts another."""
    (run,) = server.runs()
    return run


def test_the_history_of_the_job_has_the_demos_run(
    page: Page, server: DagsterServer, demo_run: str
) -> None:
    page.goto(f"{server.url}{JOB}/runs")

    expect(page.get_by_role("link", name=demo_run[:8])).to_be_visible()
    expect(page.get_by_text("Success", exact=True)).to_be_visible()


def test_every_check_has_passed_for_the_output_of_the_demos_run(
    page: Page, server: DagsterServer, demo_run: str
) -> None:
    nodes = server.query(
        """{ assetNodes { assetKey { path } assetChecksOrError { ... on AssetChecks {
          checks { name executionForLatestMaterialization { status } } } } } }"""
    )["assetNodes"]
    # What the lineage counts: "1 / 1" of these have passed.
    assert [node["assetChecksOrError"]["checks"] for node in nodes] == [
        [{"name": "cache_integrity", "executionForLatestMaterialization": {"status": "SUCCEEDED"}}]
    ] * len(build_steps())

    page.goto(f"{server.url}/assets/report?view=checks")
    expect(page.get_by_text("Passed", exact=True)).to_be_visible()


def test_automation_has_a_schedule_and_the_cache_sensor_which_is_on(
    page: Page, server: DagsterServer
) -> None:
    page.goto(f"{server.url}/automation")

    for name, on in {
        "materialize_steps_cache_sensor": True,
        "materialize_steps_schedule": False,
    }.items():
        row = page.locator("[data-index]").filter(has=page.get_by_role("link", name=name))
        # The first selects the row.
        expect(row.locator("input[type=checkbox]").last).to_be_checked(checked=on)


def test_the_demos_run_can_be_executed_again_without_a_warning(
    page: Page, server: DagsterServer, demo_run: str
) -> None:
    page.goto(f"{server.url}/runs/{demo_run}")
    page.get_by_role("button", name="Re-execute all").click()

    wait_until(lambda: len(server.runs()) == 2, "the button to launch a run")
    assert server.wait(server.runs()[0]) == "SUCCESS"
