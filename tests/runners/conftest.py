"""A Slurm for each module that asks for one, and runners of it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.slurm_server import SlurmServer, runners_of, slurm_or_skip
from marin_dagster.runners.slurm import SlurmRunner


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmServer]:
    with slurm_or_skip(tmp_path_factory.mktemp("slurm")) as server:
        yield server


@pytest.fixture
def make(server: SlurmServer, tmp_path: Path) -> Iterator[Callable[..., SlurmRunner]]:
    with runners_of(server, tmp_path / "jobs") as make:
        yield make
