"""The process runner does what every engine must."""

from collections.abc import Iterator

import pytest

from helpers.job_driver import Engine
from helpers.runner_conformance import Conformance, MemoryConformance
from marin_dagster.runners import Runner


@pytest.fixture
def engine() -> Engine:
    return Engine("process", outlives_driver=False)


@pytest.fixture
def runner(engine: Engine) -> Iterator[Runner]:
    runner = engine.runner()
    yield runner
    runner.close()


class TestProcess(Conformance, MemoryConformance):
    """Processes of this machine."""
