"""A step's page in the UI shows the step's own log, also while it runs."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

from helpers.dagster_server import DagsterServer, running_server

LOCATION = Path(__file__).with_name("talking_location.py")
LINES = {
    "stdout": ["prints a line"],
    "stderr": ["complains", "logs a line"],
}
TALKERS = ["left", "right"]
# Named first, so that nothing else is started where there is none.
pytestmark = pytest.mark.usefixtures("browser")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that lets the slow step go; not there yet."""
    return tmp_path_factory.mktemp("release") / "go"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, release: Path) -> Iterator[DagsterServer]:
    store, home = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("dagster")
    variables = {"MARIN_PREFIX": str(store), "RELEASE_FILE": str(release)}
    with running_server(home, LOCATION, **variables) as running:
        yield running


@pytest.fixture(scope="module")
def talked(server: DagsterServer) -> str:
    """A run in which both talkers have talked."""
    run = server.launch("talkers")
    assert server.wait(run) == "SUCCESS"
    return run


def open_log(page: Page, server: DagsterServer, run: str, step: str, stream: str) -> None:
    """Open a run with one step selected, and click on the stream."""
    query = urlencode({"selection": f'name:"{step}"'})
    page.goto(f"{server.url}/runs/{run}?{query}")
    page.get_by_text(stream, exact=True).click()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("step", TALKERS)
def test_the_page_of_a_step_shows_its_own_lines_and_nobody_elses(
    step: str, stream: str, page: Page, server: DagsterServer, talked: str
) -> None:
    open_log(page, server, talked, step, stream)

    own = [f"{step} {words}" for words in LINES[stream]]
    for line in own:
        expect(page.get_by_text(line)).to_be_visible()
    text = page.inner_text("body")
    every = [f"{talker} {line}" for talker in TALKERS for lines in LINES.values() for line in lines]
    assert [line for line in every if line in text] == own


def test_the_page_of_a_step_that_runs_shows_what_it_has_said_so_far(
    page: Page, server: DagsterServer, release: Path
) -> None:
    first, last = page.get_by_text("slow says its first"), page.get_by_text("slow says its last")
    run = server.launch("dawdler")
    open_log(page, server, run, "slow", "stdout")

    expect(first).to_be_visible()
    assert server.status(run) == "STARTED"
    assert last.count() == 0

    # The page stays as it is: the server sends it the rest.
    release.touch()
    expect(last).to_be_visible()
    expect(first).to_be_visible()
    assert server.wait(run) == "SUCCESS"
