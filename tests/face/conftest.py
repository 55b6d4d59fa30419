"""Fixtures for tests of the Dagster face: an instance of their own, and a store that is broken."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import fsspec
import pytest

from support import Recorder, memory_instance


class BrokenFileSystem(fsspec.AbstractFileSystem):
    """A filesystem that refuses everything, to prove that nothing touches the store."""

    protocol = "broken"
    touched: list[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("__init__")


def _refuse(name: str) -> None:
    BrokenFileSystem.touched.append(name)
    raise OSError(f"the broken filesystem was asked to {name}")


def _refusal(name: str) -> Any:
    return lambda *args, **kwargs: _refuse(name)


for _name, _member in vars(fsspec.AbstractFileSystem).items():
    if callable(_member) and not _name.startswith("__"):
        setattr(BrokenFileSystem, _name, _refusal(_name))


@pytest.fixture
def broken_store(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``MARIN_PREFIX`` on a filesystem that raises; the list says what it was asked for."""
    fsspec.register_implementation("broken", BrokenFileSystem, clobber=True)
    monkeypatch.setenv("MARIN_PREFIX", "broken://bucket/store")
    BrokenFileSystem.touched = []
    return BrokenFileSystem.touched


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance in memory."""
    with memory_instance() as made:
        yield made


@pytest.fixture
def recorder() -> Recorder:
    """Makes steps and remembers which ran."""
    return Recorder()
