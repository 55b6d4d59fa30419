"""PostgreSQL for the deployments of these tests."""

from collections.abc import Iterator

import pytest

from helpers.postgres_server import postgres_or_skip


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """URL of an empty database."""
    with postgres_or_skip() as server:
        yield server.url
