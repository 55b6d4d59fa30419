"""``[tool.marin_dagster]`` in ``pyproject.toml``: defaults for the options of every command."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from marin_dagster.cli.exits import Unusable

_TYPES: Mapping[str, type] = {
    "graph": str,
    "prefix": str,
    "max_concurrent": int,
    "retry_failed": bool,
    "execution": dict,
}


@dataclass(frozen=True)
class Settings:
    """The defaults of a project."""

    folder: Path | None = None
    """The folder of the ``pyproject.toml``; None without one."""
    graph: str | None = None
    """The graph; a file's path is relative to the folder."""
    prefix: str | None = None
    """The output path prefix; relative to the folder."""
    max_concurrent: int | None = None
    """Steps that run at once."""
    retry_failed: bool | None = None
    """Whether steps whose last attempt failed are built."""
    execution: Mapping[str, Any] = field(default_factory=dict)
    """Runners and routes, as in a run's config."""


def read_settings() -> Settings:
    """The settings of the first ``pyproject.toml`` that has some, from the working directory up.

    Raises:
        Unusable: a setting is unknown or of the wrong type, or the file is not TOML.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        file = folder / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            document = tomllib.loads(file.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Unusable(f"{file}: {error}.") from error
        table = document.get("tool", {}).get("marin_dagster")
        if table is not None:
            return Settings(folder=folder, **_checked(table, file))
    return Settings()


def _checked(table: Mapping[str, Any], file: Path) -> dict[str, Any]:
    known = [one.name for one in fields(Settings) if one.name != "folder"]
    for name, value in table.items():
        at = f"{file}: tool.marin_dagster.{name}"
        if name not in known:
            raise Unusable(f"{at} is unknown. The settings are {', '.join(known)}.")
        if type(value) is not _TYPES[name]:
            raise Unusable(f"{at} is {value!r}. Give a value of type {_TYPES[name].__name__}.")
    return dict(table)


def use_prefix(given: str | None, settings: Settings) -> None:
    """Set ``MARIN_PREFIX`` to the option, else leave the environment's, else to the setting."""
    if given:
        os.environ["MARIN_PREFIX"] = given
    elif settings.prefix and not os.environ.get("MARIN_PREFIX"):
        is_local = "://" not in settings.prefix
        prefix = settings.folder / settings.prefix if settings.folder and is_local else None
        os.environ["MARIN_PREFIX"] = settings.prefix if prefix is None else str(prefix)
