"""The example project in the UI, as somebody sees it who opens it, builds it, and builds it again.

The command and the instance are those of ``make ui``.
"""

import io
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, FloatRect, Page, expect

from conftest import new_page
from helpers.dagster_server import DagsterServer, running_server
from helpers.processes import wait_until
from language_reference.steps import build_steps
from marin_dagster import StepSpec

ROOT = Path(__file__).parents[3]
SETTINGS = (ROOT / "scripts" / "demo-instance.yaml").read_text()
# Named first, so that nothing else is started where there is none.
pytestmark = pytest.mark.usefixtures("browser")


@pytest.fixture(scope="module")
def shared_store() -> Iterator[Path]:
    """Where the server of this module has its outputs; a short path, for the pictures."""
    with tempfile.TemporaryDirectory(prefix="marin-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def server(shared_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterServer]:
    home = tmp_path_factory.mktemp("dagster")
    store = {"MARIN_PREFIX": str(shared_store)}
    workspace = Path("workspace.yaml")
    with running_server(home, workspace, settings=SETTINGS, folder=ROOT, **store) as running:
        yield running


@pytest.fixture
def steps(shared_store: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, StepSpec]:
    """The example's steps by name, as the server has them."""
    monkeypatch.setenv("MARIN_PREFIX", str(shared_store))
    return {step.name: step for step in build_steps()}


@pytest.fixture(scope="module")
def built(server: DagsterServer, browser: Browser) -> str:
    """The run that the button in the lineage has started, once it has ended."""
    return _materialize_all(server, browser)


@pytest.fixture(scope="module")
def cached(built: str, server: DagsterServer, browser: Browser) -> str:
    """A second run of the same."""
    return _materialize_all(server, browser)


def _materialize_all(server: DagsterServer, browser: Browser) -> str:
    before = server.runs()
    with new_page(browser) as page:
        page.goto(f"{server.url}/asset-groups")
        page.get_by_role("button", name="Materialize all").click()
        wait_until(lambda: len(server.runs()) > len(before), "the button to launch a run")
    run = server.runs()[0]
    assert server.wait(run) == "SUCCESS"
    return run


def _expect_whole_graph(page: Page, steps: dict[str, StepSpec]) -> None:
    graph = page.locator("[class*=AssetGraphExplorer_svgContainer]")
    for name in steps:
        expect(graph.get_by_text(name.split("/")[-1], exact=True)).to_be_visible()
    edges = sum(len(step.deps) for step in steps.values())
    expect(graph.locator("path[marker-end]")).to_have_count(edges)


def _events(server: DagsterServer, run: str) -> Counter[str]:
    return Counter(event["__typename"] for event in server.events(run))


def _filter_log(page: Page, words: str) -> None:
    # The page holds only those lines of a log that fit into it.
    page.get_by_placeholder("Filter…").fill(words)


def _show_lineage(page: Page, server: DagsterServer) -> None:
    page.goto(f"{server.url}/asset-groups")
    expect(page.get_by_label("run_success")).to_have_count(len(build_steps()))
    page.add_style_tag(content="[class*=zoomSliderContainer] {visibility: hidden}")


def _show_asset(page: Page, server: DagsterServer) -> None:
    page.goto(f"{server.url}/assets/models/ngram-4")
    page.get_by_role("button", name="Status").click()
    page.get_by_placeholder("Filter metadata keys").fill("marin/")
    expect(page.get_by_text("marin/cache")).to_be_visible()
    expect(page.get_by_text("distinct_ngrams")).to_have_count(0)


README_PICTURES = {"lineage": _show_lineage, "asset": _show_asset}


def test_the_lineage_shows_every_step_and_every_dependency(
    page: Page, server: DagsterServer, steps: dict[str, StepSpec]
) -> None:
    page.goto(f"{server.url}/asset-groups")

    _expect_whole_graph(page, steps)


def test_the_workspace_shows_the_same_when_opened_from_another_folder(
    page: Page, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    workspace = ROOT / "workspace.yaml"
    with running_server(tmp_path / "dagster", workspace, folder=elsewhere) as running:
        page.goto(f"{running.url}/asset-groups")

        _expect_whole_graph(page, {step.name: step for step in build_steps()})


def test_materialize_all_builds_every_step_and_all_assets_are_green(
    page: Page, server: DagsterServer, built: str, steps: dict[str, StepSpec]
) -> None:
    page.goto(f"{server.url}/runs/{built}")
    expect(page.get_by_text("Success", exact=True)).to_be_visible()
    # The checks are no steps of their own.
    expect(page.get_by_text(f"Succeeded ({len(steps)})")).to_be_visible()
    assert _events(server, built)["MaterializationEvent"] == len(steps)
    assert _events(server, built)["AssetCheckEvaluationEvent"] == len(steps)

    page.goto(f"{server.url}/assets")
    expect(page.get_by_text("Materialized", exact=True)).to_have_count(len(steps))


def test_the_page_of_an_asset_tells_what_it_is_and_how_it_was_built(
    page: Page, server: DagsterServer, built: str, steps: dict[str, StepSpec]
) -> None:
    step = steps["models/ngram-4"]
    page.set_viewport_size({"width": 1400, "height": 1500})
    page.goto(f"{server.url}/assets/{step.name}")

    shown = {
        "output_path": step.output_path,
        "name_with_hash": step.name_with_hash,
        "hash_id": step.hash_id,
        "attributes": '"order": 4',
        "resources": '"ram": "2g"',
        "runner": "process",
        "cache": "built",
        "files": "5",
    }
    for key, value in shown.items():
        row = page.locator("tr").filter(has=page.get_by_text(f"marin/{key}", exact=True))
        expect(row).to_contain_text(value)
    for title, value in {"Storage": step.output_path, "Kinds": "cpumarin"}.items():
        expect(page.get_by_text(title, exact=True).locator("..")).to_have_text(f"{title}{value}")
    code = page.get_by_role("link", name="Open train_ngram")
    expect(code).to_have_attribute("href", re.compile(r"src/language_reference/ngram\.py:\d+$"))
    expect(page.get_by_text("Counts the n-grams of the training tokens")).to_be_visible()
    for neighbour in ("tokenized / train", "evaluate"):
        expect(page.get_by_role("link", name=neighbour)).to_be_visible()


@pytest.mark.parametrize("name", README_PICTURES)
def test_the_pictures_of_the_readme_are_taken(
    name: str, browser: Browser, server: DagsterServer, built: str, pictures: Path
) -> None:
    with new_page(browser) as page:
        page.set_viewport_size({"width": 1440, "height": 780})
        README_PICTURES[name](page, server)
        beside_navigation: FloatRect = {"x": 240, "y": 0, "width": 1200, "height": 720}
        picture = Image.open(io.BytesIO(page.screenshot(clip=beside_navigation)))
    # These pages have few colours; the rare ones matter.
    palette = picture.convert("RGB").quantize(method=Image.Quantize.MAXCOVERAGE)
    palette.save(pictures / f"{name}.png", optimize=True)
    assert (pictures / f"{name}.png").stat().st_size < 150_000


def test_a_second_time_everything_is_served_and_the_pages_show_it(
    page: Page, server: DagsterServer, built: str, cached: str, steps: dict[str, StepSpec]
) -> None:
    events = _events(server, cached)
    assert events["ObservationEvent"] == len(steps)
    assert events["AssetCheckEvaluationEvent"] == len(steps)
    for kind in ("ExecutionStepOutputEvent", "HandledOutputEvent", "MaterializationEvent"):
        assert events[kind] == 0

    # Assets stay green, and the one of the true build stays the latest materialization.
    page.goto(f"{server.url}/assets")
    expect(page.get_by_text("Materialized", exact=True)).to_have_count(len(steps))
    page.goto(f"{server.url}/assets/report?view=events")
    expect(page.get_by_text("Observed in run")).to_be_visible()
    expect(page.get_by_role("link", name=cached[:8])).to_be_visible()
    expect(page.get_by_text("hit", exact=True)).to_be_visible()

    page.goto(f"{server.url}/runs/{cached}")
    _filter_log(page, "Served from")
    expect(
        page.get_by_text(f"Served from the cache: {steps['report'].name_with_hash}")
    ).to_be_visible()
    _filter_log(page, "of which")
    expect(
        page.get_by_text(f"Steps: {len(steps)}, of which {len(steps)} in the cache.")
    ).to_be_visible()


def test_steps_that_nobody_needs_are_skipped_with_the_reason(
    page: Page, server: DagsterServer, cached: str, steps: dict[str, StepSpec]
) -> None:
    corpus, split = steps["corpus"], steps["split"]
    for step in (corpus, split):
        Path(step.output_path, ".executor_status").unlink()
    run = server.launch("materialize_steps")
    assert server.wait(run) == "SUCCESS"

    page.goto(f"{server.url}/runs/{run}")
    expect(page.get_by_text(f"Succeeded ({len(steps) - 2})")).to_be_visible()
    _filter_log(page, "is not built and not needed")
    for step in (corpus, split):
        expect(page.get_by_text(f"Skipped: {step.name_with_hash} is not built")).to_be_visible()
