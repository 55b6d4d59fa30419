"""What ruff and import-linter cannot express about imports; ``make check`` runs both."""

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from marin_dagster import _compat, _compat_storage

PACKAGE = Path(__file__).parents[2] / "marin_dagster"
MODULES = sorted(PACKAGE.rglob("*.py"))
LAYERS_BELOW_DAGSTER = ("errors", "steps", "cache", "lazy", "runners")


@pytest.mark.parametrize("compat", [_compat, _compat_storage])
def test_every_private_name_that_is_imported_is_used(compat: ModuleType) -> None:
    used = {
        alias.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == compat.__name__
        for alias in node.names
    }
    assert set(compat.__all__) == used


@pytest.mark.parametrize("layer", LAYERS_BELOW_DAGSTER)
def test_the_lower_layers_load_without_dagster(layer: str) -> None:
    code = (
        "import sys; sys.modules['dagster'] = None; "
        f"import marin_dagster.{layer}; import marin_dagster; marin_dagster.StepSpec"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


SLOW_TO_IMPORT = (
    "alembic",
    "cloudpickle",
    "dagster._core.storage.event_log",
    "fsspec",
    "obstore",
    "requests",
    "sqlalchemy",
    "submitit",
)
"""What takes longer than this package, or is an extra; a run or a store needs it, a graph not."""


def test_all_public_names_load_without_slow_modules() -> None:
    code = (
        "import sys, dagster\n"
        "before = set(sys.modules)\n"
        "import marin_dagster\n"
        "for name in dir(marin_dagster):\n"
        "    getattr(marin_dagster, name)\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = done.stdout.split()
    assert "marin_dagster.executor.executor" in loaded
    assert not [
        name for name in loaded if f"{name}.".startswith(tuple(f"{n}." for n in SLOW_TO_IMPORT))
    ]
