"""What the UI shows of a sweep: which point is which, what it was made from, what it returned."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Locator, Page, expect

from helpers.dagster_server import DagsterServer, running_server

LOCATION = Path(__file__).with_name("sweeping_location.py")
# Named first, so that nothing else is started where there is none.
POINTS = ("train_lr-0.1_", "train_lr-0.2_")
pytestmark = pytest.mark.usefixtures("browser")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The store and Dagster's home."""
    return tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("dagster")


@pytest.fixture(scope="module")
def server(folders: tuple[Path, Path]) -> Iterator[DagsterServer]:
    """A server where one order's attributes have changed since its first build."""
    store, home = folders
    first = {"MARIN_PREFIX": str(store), "SWEEP_VERSION": "first"}
    with running_server(home, LOCATION, **first) as running:
        run = running.launch("materialize_steps", assets=["data/tokens", "models/ngram-2"])
        assert running.wait(run) == "SUCCESS"
    with running_server(home, LOCATION, **{**first, "SWEEP_VERSION": "another"}) as running:
        yield running


@pytest.fixture(scope="module")
def run(server: DagsterServer) -> str:
    """A run of everything, in which one job has died."""
    run = server.launch("materialize_steps")
    assert server.wait(run) == "FAILURE"
    return run


def value(page: Page, name: str) -> Locator:
    """The cell beside a metadata key."""
    row = page.locator("tr").filter(has=page.get_by_text(name, exact=True))
    return row.locator("> td").last


def test_the_lineage_is_one_graph_and_shows_which_point_is_which(
    page: Page, server: DagsterServer
) -> None:
    page.goto(f"{server.url}/asset-groups")

    graph = page.locator("[class*=AssetGraphExplorer_svgContainer]")
    for words in ("tokens", "ngram-2", "ngram-3", "dies", *POINTS):
        expect(graph.get_by_text(words)).to_be_attached()
    expect(graph.locator("path[marker-end]")).to_have_count(2)


def test_a_selection_by_an_attribute_finds_a_point(page: Page, server: DagsterServer) -> None:
    query = urlencode({"asset-selection": 'tag:lr="0.1"'})
    page.goto(f"{server.url}/assets?{query}")

    expect(page.get_by_role("link", name="train_lr-0.1_")).to_have_count(1)
    expect(page.get_by_role("link", name="train_lr-0.2_")).to_have_count(0)


def test_the_page_of_a_point_shows_attributes_result_and_why_it_ran(
    page: Page, server: DagsterServer, run: str
) -> None:
    page.goto(f"{server.url}/assets/models/ngram-2")

    expect(value(page, "marin/attributes")).to_contain_text('"order": 2')
    for words in ('"best": "step 3"', '"converged": true', '"curve": ['):
        expect(value(page, "marin/result")).to_contain_text(words)
    expect(value(page, "marin/reason")).to_have_text(
        "Attribute note: 'first' -> 'another'. Attribute seed: 5 -> 7."
    )
    expect(page.get_by_text("order: 2", exact=True)).to_be_visible()


def test_a_lazy_artifact_is_called_by_its_address(
    page: Page, server: DagsterServer, run: str
) -> None:
    page.goto(f"{server.url}/assets/data/tokens")

    expect(value(page, "marin/address")).to_have_text("data/tokens/2026.07.01")
    page.goto(f"{server.url}/runs/{run}")
    page.get_by_placeholder("Filter…").fill("Served from")
    expect(page.get_by_text("Served from the cache: data/tokens/2026.07.01")).to_be_visible()


def test_a_job_that_dies_without_a_word_has_a_log_that_says_so(
    page: Page, server: DagsterServer, run: str
) -> None:
    query = urlencode({"selection": 'name:"dies"'})
    page.goto(f"{server.url}/runs/{run}?{query}")
    page.get_by_text("stderr", exact=True).click()

    expect(page.get_by_text("died: signal 9 (SIGKILL)")).to_be_visible()
