"""Fixtures for tests against real marin-core."""

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import fsspec
import pytest

if TYPE_CHECKING:
    from iris_server import IrisServer
    from marin_peer import Calls

    from marin_dagster.runners.fray import FrayRunner


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder, as nobody in particular."""
    identity = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="session")
def quiet_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git checkout that nobody changes; both sides forget what they knew of another one."""
    import rigging.provenance

    import marin_dagster.cache.provenance as our_provenance

    our_provenance._capture_once.cache_clear()
    rigging.provenance._capture_once.cache_clear()
    checkout = tmp_path_factory.mktemp("checkout")
    git(checkout, "init", "--initial-branch", "work")
    git(checkout, "remote", "add", "origin", "https://example.org/repository.git")
    (checkout / "code.py").write_text("a = 1\n")
    git(checkout, "add", "code.py")
    git(checkout, "commit", "-m", "Begin")
    return checkout


@pytest.fixture(autouse=True)
def _in_the_quiet_checkout(quiet_checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides ask git once for each process; here both get the same answer."""
    monkeypatch.chdir(quiet_checkout)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster instance in memory."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture(scope="module")
def iris() -> "Iterator[IrisServer]":
    """A real Iris controller."""
    from iris_server import iris_server

    with iris_server() as server:
        yield server


@pytest.fixture
def runner(iris: "IrisServer") -> "Iterator[FrayRunner]":
    """A runner whose jobs the controller takes."""
    from fray_steps import new_runner

    runner = new_runner(iris)
    yield runner
    runner.close()


@pytest.fixture
def calls() -> "Calls":
    """Functions that count."""
    # Not above: without marin-core the tests are to fail, and this file is to load.
    from marin_peer import Calls

    return Calls()


@pytest.fixture(params=["disk", "file-url", "memory", pytest.param("s3", marks=pytest.mark.server)])
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store of each kind that this machine can have."""
    if request.param == "disk":
        yield str(tmp_path / "store")
    elif request.param == "file-url":
        yield f"file://{tmp_path}/store"
    elif request.param == "s3":
        yield request.getfixturevalue("s3_prefix")
    else:
        url = f"memory://store-{uuid.uuid4().hex}"
        yield url
        filesystem, folder = fsspec.core.url_to_fs(url)
        if filesystem.exists(folder):
            filesystem.rm(folder, recursive=True)
