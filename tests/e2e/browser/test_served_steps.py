"""A run that serves everything from the cache is green in the UI, with a note for each step."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from helpers.dagster_server import DagsterServer, running_server

LOCATION = Path(__file__).with_name("known_location.py")
STEPS = ["first", "second", "third"]
# Named first, so that nothing else is started where there is none.
pytestmark = pytest.mark.usefixtures("browser")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterServer]:
    store, home = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("dagster")
    with running_server(home, LOCATION, MARIN_PREFIX=str(store)) as running:
        yield running


@pytest.fixture(scope="module")
def served(server: DagsterServer) -> str:
    """A run that served what the one before it has built."""
    for _ in range(2):
        run = server.launch("materialize_steps")
        assert server.wait(run) == "SUCCESS"
    return run


def test_the_run_page_shows_served_steps_as_succeeded(
    page: Page, server: DagsterServer, served: str
) -> None:
    page.goto(f"{server.url}/runs/{served}")

    expect(page.get_by_text("Succeeded (3)")).to_be_visible()
    for step in STEPS:
        # A dot, or a bar if the machine was busy.
        drawn = page.locator(f'.chart-element[data-tooltip="{step}"]').first
        expect(drawn).to_have_attribute("style", re.compile("accent-green"))
        expect(page.get_by_text(f"Served from the cache: {step}_").first).to_be_attached()


def test_the_asset_page_shows_the_observation_of_a_served_step(
    page: Page, server: DagsterServer, served: str
) -> None:
    page.goto(f"{server.url}/assets/second?view=events")

    expect(page.get_by_text("marin/cache").first).to_be_visible()
