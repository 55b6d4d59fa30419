"""The process runner does what every engine must."""

import pytest

from helpers.job_driver import Engine
from helpers.runner_conformance import Conformance, MemoryConformance


@pytest.fixture
def engine() -> Engine:
    return Engine("process", outlives_driver=False)


class TestProcess(Conformance, MemoryConformance):
    """Processes of this machine."""
