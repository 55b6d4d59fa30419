"""Imports the modules in which graphs are defined, and explains what their code raises."""

import hashlib
import importlib
import importlib.util
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from marin_dagster.errors import MarinDagsterError

T = TypeVar("T")


class GraphNameError(MarinDagsterError):
    """A name that leads to no graph."""


class GraphCodeError(GraphNameError):
    """The code that makes the graph raised; the cause is what it raised."""

    def __init__(self, message: str, file: str | None, line: int | None) -> None:
        super().__init__(message)
        self.file = file
        """The file of the last line of code outside this package."""
        self.line = line
        """That line."""


def import_module(where: str, folder: Path) -> types.ModuleType:
    """A module, or a Python file as a module.

    Args:
        where: the module's name, or the file's path.
        folder: where both are looked up.

    Raises:
        GraphNameError: there is none.
        GraphCodeError: its code raises.
    """
    path = folder / where
    if not where.endswith(".py") and "/" not in where:
        _search_first(folder)
        return call_users_code(lambda: importlib.import_module(where), where)
    if not path.is_file():
        raise GraphNameError(f"there is no file {path}.")
    path = path.resolve()
    _search_first(path.parent)
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if loaded is not None:
        # Of another file: an installed module, or a graph that was loaded before.
        name = f"{name}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    return call_users_code(lambda: _execute(name, path), where)


def _execute(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GraphNameError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _search_first(folder: Path) -> None:
    """As ``python -m`` and ``python file.py`` do."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def call_users_code(load: Callable[[], T], where: str) -> T:
    """What ``load`` returns.

    Raises:
        GraphNameError: it imports the module ``where``, which does not exist.
        GraphCodeError: it raises.
    """
    try:
        return load()
    except GraphNameError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == where.partition(".")[0]:
            raise GraphNameError(
                f"there is no module {where!r}. Run this where it can be imported, or name a file: "
                f"{where.replace('.', '/')}.py:attribute."
            ) from error
        file, line = _place(error)
        if isinstance(error, MarinDagsterError):
            raise GraphCodeError(str(error), file, line) from error
        # A syntax error's message names the line.
        at = f" ({file}, line {line})" if file and not isinstance(error, SyntaxError) else ""
        raise GraphCodeError(
            f"{where} raised {type(error).__name__}: {error}{at}. Mend it, or see the traceback "
            "with --debug.",
            file,
            line,
        ) from error


def _place(error: BaseException) -> tuple[str | None, int | None]:
    """The last line of code outside this package and Python's import machinery."""
    if isinstance(error, SyntaxError):
        return error.filename, error.lineno
    own = str(Path(__file__).parents[1])
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((own, "<frozen"))
    ]
    return (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
