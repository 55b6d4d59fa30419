"""Slurm does what every engine must."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.job_driver import Engine
from helpers.runner_conformance import Conformance, MemoryConformance
from helpers.slurm_server import SLOTS, SlurmServer, slurm_or_skip
from marin_dagster.runners import Runner


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmServer]:
    with slurm_or_skip(tmp_path_factory.mktemp("slurm")) as server:
        yield server


@pytest.fixture
def engine(server: SlurmServer, tmp_path: Path) -> Engine:
    return Engine("slurm", server.settings(tmp_path / "jobs"), slots=SLOTS)


@pytest.fixture
def runner(engine: Engine) -> Iterator[Runner]:
    runner = engine.runner()
    yield runner
    runner.close()


class TestSlurm(Conformance, MemoryConformance):
    """A one-node cluster."""
