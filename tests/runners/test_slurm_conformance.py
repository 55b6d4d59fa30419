"""Slurm does what every engine must."""

from pathlib import Path

import pytest

from helpers.job_driver import Engine
from helpers.runner_conformance import Conformance, MemoryConformance
from helpers.slurm_server import SLOTS, SlurmServer


@pytest.fixture
def engine(server: SlurmServer, tmp_path: Path) -> Engine:
    return Engine("slurm", server.settings(tmp_path / "jobs"), slots=SLOTS)


class TestSlurm(Conformance, MemoryConformance):
    """A one-node cluster."""
