"""Fixtures and options that every test can use."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from helpers.processes import answers, free_port, running_process

if TYPE_CHECKING:
    # The tests of the lower layers load none of these.
    from alembic.config import Config
    from dagster import DagsterInstance

    from helpers.runs import Recorder

S3_SERVER = Path(__file__).with_name("helpers") / "s3_server.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run-interop",
        action="store_true",
        help="run the tests against real marin-core; fail when it is not installed",
    )


STARTS_A_SERVER = {"browser", "gcs", "iris", "postgres", "s3_server", "server", "slurm"}
"""Fixtures, some in other modules, whose tests get the marker ``server``."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if STARTS_A_SERVER.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("server")


def pytest_collection_finish() -> None:
    if "alembic.script" in sys.modules:
        _load_migrations_once()


def _load_migrations_once() -> None:
    """Keep Dagster's migrations in memory: each new storage would import some 90 files again."""
    from alembic.script import ScriptDirectory

    load = ScriptDirectory.from_config
    loaded: dict[str | None, ScriptDirectory] = {}

    def load_once(config: "Config") -> ScriptDirectory:
        location = config.get_main_option("script_location")
        if location not in loaded:
            loaded[location] = load(config)
        return loaded[location]

    ScriptDirectory.from_config = staticmethod(load_once)  # type: ignore[method-assign]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # They import marin-core, which only their own environment has.
    if collection_path.name == "interop" and not config.getoption("--run-interop"):
        return True
    return None


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A durable prefix of its own for every test, and nothing of the caller's."""
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "store"))
    monkeypatch.delenv("MARIN_PROVENANCE", raising=False)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    monkeypatch.setenv("DO_NOT_TRACK", "1")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The folder that ``MARIN_PREFIX`` names; it does not exist yet."""
    return tmp_path / "store"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real S3 server on loopback, with atomic conditional puts; yields its URL."""
    port = free_port()
    log = tmp_path_factory.mktemp("s3") / "server.log"
    command = (sys.executable, str(S3_SERVER), "-H", "127.0.0.1", "-p", str(port))
    url = f"http://127.0.0.1:{port}"
    with running_process(command, log) as process:
        process.wait(lambda: answers(url))
        yield url


@pytest.fixture
def s3_prefix(
    s3_server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> str:
    """An empty bucket of the S3 server, as a prefix; the process's S3 settings point to it."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{os.getpid()}-{abs(hash(request.node.nodeid)) % 10**10}"
    s3fs.S3FileSystem().mkdir(bucket)
    return f"s3://{bucket}/store"


@pytest.fixture
def broken_store(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``MARIN_PREFIX`` on a filesystem that raises; the list has the calls it received."""
    import fsspec

    from helpers.broken_store import BrokenFileSystem

    fsspec.register_implementation("broken", BrokenFileSystem, clobber=True)
    monkeypatch.setenv("MARIN_PREFIX", "broken://bucket/store")
    BrokenFileSystem.touched = []
    return BrokenFileSystem.touched


@pytest.fixture
def instance() -> "Iterator[DagsterInstance]":
    """An instance in memory."""
    from helpers.runs import memory_instance

    with memory_instance() as made:
        yield made


@pytest.fixture
def recorder() -> "Recorder":
    """Makes steps and remembers which ran."""
    from helpers.runs import Recorder

    return Recorder()
