"""An asset's page shows the files of its output and plots its numbers, and no trick works on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from helpers.dagster_server import DagsterServer, running_server

LOCATION = Path(__file__).with_name("previewing_location.py")
WIDTH = 48
"""Of the picture, in pixels."""
# Named first, so that nothing else is started where there is none.
pytestmark = pytest.mark.usefixtures("browser")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterServer]:
    """A server with two materializations of the report."""
    store, home = tmp_path_factory.mktemp("store"), tmp_path_factory.mktemp("dagster")
    with running_server(home, LOCATION, MARIN_PREFIX=str(store)) as running:
        for _ in range(2):
            run = running.launch("materialize_steps", {"execution": {"config": {"force": True}}})
            assert running.wait(run) == "SUCCESS"
        yield running


@pytest.fixture
def asset(page: Page, server: DagsterServer) -> Iterator[Page]:
    """The asset's page; no error in it, and none of the tricks worked."""
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{server.url}/assets/report")
    expect(page.get_by_text("marin/preview/scores.json")).to_be_visible()
    yield page
    assert errors == []
    assert page.evaluate("window.tricked") is None


def value(asset: Page, name: str) -> Locator:
    """The cell beside a metadata key."""
    row = asset.locator("tr").filter(has=asset.get_by_text(name, exact=True))
    return row.locator("> td").last


def expect_picture(where: Locator, name: str) -> None:
    picture = where.get_by_alt_text(name)
    expect(picture).to_be_visible()
    assert picture.evaluate("picture => picture.naturalWidth") == WIDTH


def test_a_small_picture_is_in_the_list(asset: Page) -> None:
    expect_picture(value(asset, "marin/preview/board.png"), "board.png")


def test_a_report_opens_with_its_picture(asset: Page) -> None:
    value(asset, "marin/preview/report.md").get_by_text("[Show Markdown]").click()

    expect(asset.get_by_role("heading", name="A report with tricks")).to_be_visible()
    expect_picture(asset.locator("body"), "the board")
    link = asset.get_by_text("a link", exact=True)
    link.evaluate("link => link.removeAttribute('target')")
    link.click()


def test_a_table_and_json_show_their_text_as_it_is(asset: Page) -> None:
    table = value(asset, "marin/preview/table of all.csv")
    for text in ("name", "loss", "0.5", "**c**", "a | `b` <img src=x onerror=window.tricked=1>"):
        expect(table.get_by_text(text, exact=True)).to_be_visible()

    scores = value(asset, "marin/preview/scores.json")
    expect(scores).to_contain_text('"NaN"')
    expect(scores).to_contain_text("<b>bold</b>")


def test_a_number_of_the_result_is_plotted(asset: Page) -> None:
    asset.get_by_text("Plots", exact=True).click()

    expect(asset.get_by_text("loss", exact=True)).to_be_visible()
    # By name, and the result's comes before our own; a canvas has its lines in pixels only.
    asset.wait_for_function(
        """() => {
          const canvas = document.querySelector("canvas");
          const drawing = canvas?.getContext("2d");
          const pixels = drawing?.getImageData(0, 0, canvas.width, canvas.height).data ?? [];
          return pixels.some((value) => value > 0);
        }"""
    )
