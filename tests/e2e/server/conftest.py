"""``dagster dev`` with the code location that a module names as ``LOCATION``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.dagster_server import DagsterServer, running_server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, store: Path
) -> Iterator[DagsterServer]:
    home, location = tmp_path_factory.mktemp("dagster"), request.module.LOCATION
    with running_server(home, location, MARIN_PREFIX=str(store)) as running:
        yield running
