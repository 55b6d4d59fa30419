"""The Fray runner on a real Iris controller does what every engine must."""

from collections.abc import Iterator

import pytest
from iris_server import iris_server

from helpers.job_driver import Engine
from helpers.runner_conformance import Conformance, QueueConformance
from marin_dagster.runners import Runner


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with iris_server() as server:
        yield Engine(
            "fray",
            {"address": server.url, "shared_disk": True},
            resources={"cpu": 4, "ram": "1g", "disk": "1g"},
            slots=2,
        )


@pytest.fixture
def runner(engine: Engine) -> Iterator[Runner]:
    runner = engine.runner()
    yield runner
    runner.close()


class TestIris(Conformance, QueueConformance):
    """Jobs of Iris, whose worker here is this machine."""
