"""Lets Dagster load the project by file, without installing it: the package lies under `src`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))

from language_reference.definitions import defs

__all__ = ["defs"]
