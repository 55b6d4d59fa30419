"""Imports run one way through the rooms, and private Dagster names live in one file."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_dagster import _compat

PACKAGE = Path(__file__).parents[2] / "marin_dagster"
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = ("errors", "steps", "cache", "lazy", "runners")
"""From the bottom up; every other module is the Dagster face, above them all."""


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions; names in full."""
    package = path.relative_to(PACKAGE.parent).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: -node.level]) if node.level else ""
            yield ".".join(part for part in (base, node.module) if part)


def room_of(module: str) -> int:
    part = module.partition(".")[2].partition(".")[0]
    return ROOMS.index(part) if part in ROOMS else len(ROOMS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_downwards(path: Path) -> None:
    own = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    if own == "marin_dagster.__init__":
        return  # it names every room's public names, lazily
    for name in imports(path):
        if name == "marin_dagster" or name.startswith("marin_dagster."):
            assert name != "marin_dagster", f"{own} imports the package itself"
            assert room_of(name) <= room_of(own), f"{own} imports {name}, which is above it"
        if name.split(".")[0] in ("dagster", "dagster_shared"):
            assert room_of(own) == len(ROOMS), f"{own} imports Dagster"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_dagster_names_are_imported_in_one_place(path: Path) -> None:
    private = [name for name in imports(path) if name.startswith(("dagster._", "dagster_shared"))]
    assert not private or path.name == "_compat.py"


def test_every_private_name_that_is_imported_is_used() -> None:
    used = {
        alias.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "marin_dagster._compat"
        for alias in node.names
    }
    assert set(_compat.__all__) == used


@pytest.mark.parametrize("room", ROOMS)
def test_the_lower_rooms_load_without_dagster(room: str) -> None:
    code = (
        "import sys; sys.modules['dagster'] = None; "
        f"import marin_dagster.{room}; import marin_dagster; marin_dagster.StepSpec"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
