"""The Fray runner on a real Iris controller does what every engine must."""

import pytest
from iris_server import IrisServer

from helpers.job_driver import Engine
from helpers.runner_conformance import Conformance, QueueConformance


@pytest.fixture(scope="module")
def engine(iris: IrisServer) -> Engine:
    return Engine(
        "fray",
        {"address": iris.url, "shared_disk": True},
        resources={"cpu": 4, "ram": "1g", "disk": "1g"},
        slots=2,
    )


class TestIris(Conformance, QueueConformance):
    """Jobs of Iris, whose worker here is this machine."""
