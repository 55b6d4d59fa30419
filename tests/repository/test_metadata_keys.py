"""All ``marin/…`` metadata and tag keys have a constant in one module, and no literal elsewhere."""

import ast
import re
from pathlib import Path

import pytest

from marin_dagster.events import metadata_keys

PACKAGE = Path(__file__).parents[2] / "marin_dagster"
KEYS = {name: key for name, key in vars(metadata_keys).items() if name.isupper()}
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.stem != "metadata_keys"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_spells_a_key(path: Path) -> None:
    texts = [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]

    # Prose that mentions a key has blanks.
    assert [text for text in texts if re.fullmatch(r"marin/\S*", text)] == []


def test_each_key_has_one_name_that_spells_it() -> None:
    assert len(KEYS) > 30
    for name, key in KEYS.items():
        assert key.rstrip("/") == f"marin/{name.removesuffix('_PREFIX').lower()}"
