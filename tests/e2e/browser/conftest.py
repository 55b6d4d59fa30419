"""Fixtures for tests that look at the UI as a person does: a browser, and pages with pictures."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

PICTURES = "MARIN_DAGSTER_PICTURES"
"""Environment variable: a folder for pictures of the pages; by default, each test's own. ``make``
sets it to ``.pictures``."""
PATIENCE_MS = 60_000
"""Guard against a hang; no test waits this long when things work."""

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # The page may ask the server under test, and nobody else.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium, as the system has it."""
    executable = shutil.which("chromium")
    if executable is None:
        missing = "chromium is not installed; scripts/install-debian installs it"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=executable, headless=True, args=FLAGS, timeout=PATIENCE_MS
        )
        yield chromium
        chromium.close()


@contextmanager
def new_page(browser: Browser) -> Iterator[Page]:
    """An empty page of a person who has never been here."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    # The invitation that new users see covers what the tests look at.
    context.add_init_script("localStorage.setItem('communityNux', '\"1\"')")
    yield context.new_page()
    context.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """The folder for pictures."""
    folder = Path(os.environ.get(PICTURES) or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest, pictures: Path) -> Iterator[Page]:
    """An empty page; its picture is taken when the test has ended, well or not."""
    with new_page(browser) as opened:
        yield opened
        name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
        opened.screenshot(path=pictures / f"{name}.png")
