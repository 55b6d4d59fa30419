"""What ruff and import-linter cannot express about imports; ``make check`` runs both."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from marin_dagster import _compat

PACKAGE = Path(__file__).parents[2] / "marin_dagster"
MODULES = sorted(PACKAGE.rglob("*.py"))
LAYERS_BELOW_DAGSTER = ("errors", "steps", "cache", "lazy", "runners")


def test_every_private_name_that_is_imported_is_used() -> None:
    used = {
        alias.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "marin_dagster._compat"
        for alias in node.names
    }
    assert set(_compat.__all__) == used


@pytest.mark.parametrize("layer", LAYERS_BELOW_DAGSTER)
def test_the_lower_layers_load_without_dagster(layer: str) -> None:
    code = (
        "import sys; sys.modules['dagster'] = None; "
        f"import marin_dagster.{layer}; import marin_dagster; marin_dagster.StepSpec"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
