"""Builds the example project once for the tests that look at its results."""

from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import pytest

Build = tuple[dict[str, str], dict[str, Any]]
"""Of each step by name: its output path, and what its function returned."""


def build_all(prefix: str) -> Build:
    """Runs every step of the project with its outputs under `prefix`."""
    from language_reference.steps import build_steps

    paths: dict[str, str] = {}
    returned: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARIN_PREFIX", prefix)
        for step in build_steps():
            filesystem, folder = fsspec.core.url_to_fs(step.output_path)
            filesystem.makedirs(folder, exist_ok=True)
            assert step.fn is not None
            paths[step.name] = step.output_path
            returned[step.name] = step.fn(step.output_path)
    return paths, returned


@pytest.fixture(scope="session")
def build_project() -> Callable[[str], Build]:
    return build_all


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """One build of the whole project on local disk."""
    return build_all(str(tmp_path_factory.mktemp("language_reference")))


@pytest.fixture
def memory() -> Iterator[str]:
    """A prefix in fsspec's memory file system, emptied afterwards."""
    prefix = "memory://example-project-test"
    yield prefix
    filesystem, folder = fsspec.core.url_to_fs(prefix)
    if filesystem.exists(folder):
        filesystem.rm(folder, recursive=True)
