"""Loads the graph that a name stands for: ``module:attribute`` or ``file.py:attribute``."""

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin_dagster.cli.graph_modules import GraphNameError, call_users_code, import_module
from marin_dagster.errors import GraphError

if TYPE_CHECKING:
    import dagster as dg

    from marin_dagster.steps import StepGraph


@dataclass(frozen=True)
class NamedGraph:
    """A graph, and where it is defined."""

    name: str
    """As the user wrote it."""
    file: str | None
    """The file of its module."""
    line: int | None
    """The line that defines the attribute."""
    value: "dg.Definitions | list[Any]"
    """Definitions, or steps and handles."""

    def graph(self) -> "StepGraph":
        """The graph of all its steps.

        Raises:
            GraphError: the graph is wrong, or it has no steps.
        """
        from marin_dagster.steps import StepGraph

        if isinstance(self.value, list):
            found = StepGraph.from_steps(self.value)
        else:
            from marin_dagster.cli.step_assets import check_unpartitioned, graph_of

            check_unpartitioned(self.value, self.name)
            found = graph_of(self.value)
        if not found.steps:
            raise GraphError(f"{self.name} has no steps.")
        return found

    def definitions(self) -> "dg.Definitions":
        """Its Definitions, or Definitions made of its steps."""
        if not isinstance(self.value, list):
            from marin_dagster.cli.step_assets import check_unpartitioned

            check_unpartitioned(self.value, self.name)
            return self.value
        from marin_dagster.definitions import build_definitions

        return build_definitions(self.graph(), checks=False)


def load_named(
    name: str, *, folder: Path | None = None, partition: str | None = None
) -> NamedGraph:
    """Import the module of a graph and read its attribute. What the module prints goes to stderr.

    Args:
        name: ``module:attribute`` or ``file.py:attribute``.
        folder: relative files and modules are looked up here; the working directory when None.
        partition: the key with which the function that returns the steps is called.

    Raises:
        GraphNameError: the module, file or attribute does not exist, its code raises, or the
            attribute is not a graph.
        GraphError: the code builds a wrong graph.
    """
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise GraphNameError(
            f"the graph {name!r} names no attribute. Write module:attribute or file.py:attribute."
        )
    folder = folder or Path.cwd()
    with redirect_stdout(sys.stderr):
        module = import_module(where, folder)
        if not hasattr(module, attribute):
            graphs = ", ".join(f"{where}:{one}" for one in _candidates(module))
            hint = f" It has {graphs}." if graphs else ""
            raise GraphNameError(f"{where} has no attribute {attribute!r}.{hint}")
        value = _value(getattr(module, attribute), name, partition)
    file = getattr(module, "__file__", None)
    return NamedGraph(name, file, _line(file, attribute), value)


def _value(found: Any, name: str, partition: str | None) -> Any:
    if _is_definitions(found):
        if partition is not None:
            raise GraphNameError(
                f"{name} is Definitions. --partition needs a function that takes the key of a "
                "partition and returns its steps."
            )
        return found
    if callable(found) and not callable(getattr(found, "lower", None)):
        return _value(_call(found, name, partition), name, None)
    if partition is not None:
        raise GraphNameError(f"{name} is not a function, so it takes no partition.")
    graph = getattr(found, "graph", found)  # of a MarinGraph
    if hasattr(graph, "terminals") and hasattr(graph, "steps"):
        return [graph.steps[path] for path in graph.terminals]
    if callable(getattr(found, "lower", None)) and not isinstance(found, (str, bytes)):
        return [found]
    if hasattr(type(found), "name_with_hash"):
        return [found]
    if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
        raise GraphNameError(
            f"{name} is a {type(found).__name__}, not a graph. Name a list of steps, a function "
            "that returns one, or Definitions."
        )
    return list(found)


def _call(function: Callable[..., Any], name: str, partition: str | None) -> Any:
    try:
        required = [
            one.name
            for one in inspect.signature(function).parameters.values()
            if one.default is one.empty
            and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        required = []
    if partition is None and required:
        raise GraphNameError(
            f"{name} takes {', '.join(required)}. If that is the key of a partition, give "
            "--partition; else name a function without parameters."
        )
    if partition is not None and not inspect.signature(function).parameters:
        raise GraphNameError(f"{name} takes no parameter, so it has no partitions.")
    arguments = () if partition is None else (partition,)
    return call_users_code(lambda: function(*arguments), name)


def _is_definitions(value: Any) -> bool:
    # A module that makes Definitions has imported Dagster; this one need not.
    dagster = sys.modules.get("dagster")
    return dagster is not None and isinstance(value, dagster.Definitions)


def _candidates(module: types.ModuleType) -> list[str]:
    """Attributes that are probably graphs: Definitions, and lists that begin with a step."""

    def is_graph(value: Any) -> bool:
        is_list = not _is_definitions(value) and isinstance(value, (list, tuple))
        first = next(iter(value), None) if is_list else None
        return _is_definitions(value) or hasattr(type(first), "name_with_hash")

    return [name for name, value in vars(module).items() if name[0] != "_" and is_graph(value)]


def _line(file: str | None, attribute: str) -> int | None:
    """The line of a file that defines an attribute; None if that is not visible in its text."""
    import ast

    try:
        tree = ast.parse(Path(file or "").read_text())
    except (OSError, ValueError, SyntaxError):
        return None
    found = None
    for node in tree.body:
        names = [getattr(node, "name", None)]
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        if attribute in names:
            found = node.lineno
    return found
