"""Fixtures for tests of Dagster's features: an instance on SQLite with logs on disk."""

from collections.abc import Iterator

import dagster as dg
import pytest


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance as ``dagster dev`` has it: SQLite, and compute logs in files."""
    with dg.instance_for_test() as sqlite:
        yield sqlite
