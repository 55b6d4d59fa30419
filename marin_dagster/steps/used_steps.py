"""``UsedSteps``: which steps a step's function refers to, without running anything.

The search starts at the function and follows what Python would use: closures, defaults, arguments
of ``functools.partial``, path constants, the globals that the code loads, and the functions that it
finds there. It looks into built-in collections, dataclasses and pydantic models, and at those
attributes of other objects, classes and modules that the code names. It stops at steps, handles and
modules of other packages. No property, ``__repr__`` or other code of the user runs.
"""

import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from marin_dagster.steps.graph import StepGraph
from marin_dagster.steps.protocol import StepLike, handle_of
from marin_dagster.steps.remote import is_remote, step_function
from marin_dagster.steps.static_parts import (
    MAX_VALUES,
    attribute,
    innermost,
    is_mapping,
    loads,
    names_in,
    nested,
    parts_of,
    unbound,
)
from marin_dagster.steps.step_references import StepReferences

_MAX_DEPTH = 8
"""How many objects deep the search goes, from a function's variables."""
_MAX_FUNCTIONS = 1_000
"""How many functions are followed from one step's."""

_CALLED = ("__init__", "__call__")
_PLAIN = (type(None), bool, int, float, complex, bytes, type(Ellipsis))


@dataclass(frozen=True)
class StepUse:
    """One place in a function that refers to steps."""

    paths: tuple[str, ...]
    """Their output paths."""
    where: str
    """The place, such as ``global 'corpus'``."""
    is_collection: bool = False
    """Whether they are in a collection with several values."""
    is_mapping: bool = False
    """Whether there is a dictionary in it."""


@dataclass(eq=False)
class _Uses:
    """What a function, or the globals of its code, refers to."""

    uses: list[StepUse] = field(default_factory=list)
    functions: list[types.FunctionType] = field(default_factory=list)
    """The functions that it may call."""
    left: int = MAX_VALUES
    """How many more values may be looked at."""
    seen: set[int] = field(default_factory=set)
    """Ids of the objects that were looked at."""


class UsedSteps:
    """Finds the steps that functions of a graph refer to. Code that several functions share is
    searched once."""

    def __init__(self, graph: StepGraph) -> None:
        self._references = StepReferences(graph)
        self._starts: dict[str, list[Any]] = {}
        for path, step in graph.steps.items():
            handle = handle_of(step)
            if handle is None:
                self._starts[path] = [step_function(step)]
            else:
                run = handle.run
                self._starts[path] = [run.fn if is_remote(run) else run, handle.build_config]
        self._own_packages = {
            _package(getattr(innermost(start), "__module__", None))
            for starts in self._starts.values()
            for start in starts
        }
        self._of_function: dict[int, tuple[StepUse, ...]] = {}
        self._of_variables: dict[types.FunctionType, _Uses] = {}
        self._of_code: dict[tuple[types.CodeType, int], _Uses] = {}
        self._foreign: dict[str, bool] = {}

    @property
    def names(self) -> Mapping[str, str]:
        """The address of each step of the graph and of each that was found, by output path."""
        return self._references.names

    def of(self, step: StepLike) -> list[StepUse]:
        """The places in a step's function that refer to steps; also to the step itself."""
        return [use for start in self._starts[step.output_path] for use in self._start(start)]

    def _start(self, start: Any) -> tuple[StepUse, ...]:
        # Points of a sweep are often partials of one function.
        if isinstance(start, types.FunctionType):
            if id(start) not in self._of_function:
                self._of_function[id(start)] = tuple(self._follow([start]))
            return self._of_function[id(start)]
        found = _Uses()
        if isinstance(start, functools.partial):
            self._arguments(start, found)
            return (*found.uses, *self._follow(found.functions), *self._start(start.func))
        call = inspect.getattr_static(type(start), "__call__", None)
        if isinstance(call, types.FunctionType):
            self._attributes(start, call, "attribute", found, 0)
            found.functions.append(call)
        self._visit(start, "the function", (), found, 0)
        return (*found.uses, *self._follow(found.functions))

    def _follow(self, functions: Iterable[types.FunctionType]) -> Iterator[StepUse]:
        seen: set[int] = set()
        waiting = deque(functions)
        while waiting and len(seen) < _MAX_FUNCTIONS:
            function = waiting.popleft()
            if id(function) in seen:
                continue
            seen.add(id(function))
            for part in (self._variables(function), self._code(function)):
                yield from part.uses
                waiting.extend(part.functions)

    def _variables(self, function: types.FunctionType) -> _Uses:
        """The function's closure and defaults."""
        if function in self._of_variables:
            return self._of_variables[function]
        found = self._of_variables[function] = _Uses()
        code = function.__code__
        names = names_in(code)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            self._visit(value, f"variable {name!r}", names, found, 0)
        defaults = function.__defaults__ or ()
        positional = code.co_varnames[: code.co_argcount]
        named = [
            *zip(positional[len(positional) - len(defaults) :], defaults, strict=False),
            *(function.__kwdefaults__ or {}).items(),
        ]
        for name, value in named:
            self._visit(value, f"default of {name!r}", names, found, 0)
        return found

    def _code(self, function: types.FunctionType) -> _Uses:
        """The globals that the function's code loads, the modules that it imports, and the paths
        among its constants."""
        key = (function.__code__, id(function.__globals__))
        if key in self._of_code:
            return self._of_code[key]
        found = self._of_code[key] = _Uses()
        variables = function.__globals__
        if self._is_foreign(variables.get("__name__")):
            return found
        names = names_in(function.__code__)
        for code in nested(function.__code__):
            for text in code.co_consts:
                if isinstance(text, (str, tuple, frozenset)):
                    self._visit(text, "a constant", names, found, 0)
            # Decoding is slow, and most code loads nothing that matters.
            if any(
                self._matters(variables.get(name)) or self._matters(sys.modules.get(name))
                for name in code.co_names
            ):
                for load, name in loads(code):
                    if load == "IMPORT_NAME":
                        module, where = sys.modules.get(name), f"import of {name!r}"
                        self._visit(module, where, names, found, 0)
                    else:
                        self._visit(variables.get(name), f"global {name!r}", names, found, 0)
        return found

    def _matters(self, value: Any) -> bool:
        if isinstance(value, types.ModuleType):
            return not self._is_foreign(value.__name__)
        if isinstance(value, (type, types.FunctionType)):
            return not self._is_foreign(value.__module__)
        return not isinstance(value, (*_PLAIN, types.BuiltinFunctionType))

    def _visit(
        self, value: Any, where: str, names: Iterable[str], found: _Uses, depth: int
    ) -> None:
        """Look at one value.

        Args:
            value: what the code refers to.
            where: how.
            names: the attributes that the code names.
            found: receives what it finds.
            depth: how many objects deep the value is.
        """
        if isinstance(value, _PLAIN) or depth > _MAX_DEPTH or found.left <= 0:
            return
        found.left -= 1
        path = self._references.path_of(value)
        if path is not None:
            found.uses.append(StepUse((path,), where))
            return
        if isinstance(value, (str, PurePath)) or id(value) in found.seen:
            return
        found.seen.add(id(value))
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self._callable(value, where, names, found, depth)
        elif isinstance(value, (types.ModuleType, type)):
            own = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
            if not self._is_foreign(own):
                self._named(vars(value), (*names, *_CALLED), where, found, depth)
        elif (inner := parts_of(value)) is not None:
            self._collection(value, inner, where, names, found, depth)
        else:
            self._object(value, where, names, found, depth)

    def _callable(
        self, value: Any, where: str, names: Iterable[str], found: _Uses, depth: int
    ) -> None:
        if isinstance(value, types.FunctionType):
            found.functions.append(value)
        elif isinstance(value, functools.partial):
            self._arguments(value, found)
            self._visit(value.func, where, names, found, depth + 1)
        elif isinstance(value.__func__, types.FunctionType):
            found.functions.append(value.__func__)
            self._attributes(value.__self__, value.__func__, where, found, depth)

    def _object(
        self, value: Any, where: str, names: Iterable[str], found: _Uses, depth: int
    ) -> None:
        # Decorators such as functools.cache make objects that hold the function.
        wrapped = inspect.getattr_static(value, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType):
            found.functions.append(wrapped)
        if self._is_foreign(type(value).__module__):
            return
        for name in dict.fromkeys((*names, "__call__")):
            found_there = attribute(value, name)
            if found_there is not None:
                self._visit(found_there, f"{where}, attribute {name!r}", names, found, depth + 1)

    def _attributes(
        self, owner: Any, method: types.FunctionType, where: str, found: _Uses, depth: int
    ) -> None:
        """What a method, and the methods that it calls, names of its object."""
        names: dict[str, None] = {}
        methods = [method]
        while methods:
            for name in names_in(methods.pop().__code__):
                if name not in names:
                    names[name] = None
                    found_there = attribute(owner, name)
                    if isinstance(found_there, types.FunctionType):
                        methods.append(found_there)
        for name in names:
            found_there = attribute(owner, name)
            if found_there is not None:
                at = f"{where}, attribute {name!r}" if where != "attribute" else f"{where} {name!r}"
                self._visit(found_there, at, tuple(names), found, depth + 1)

    def _arguments(self, call: functools.partial[Any], found: _Uses) -> None:
        inner = innermost(call)
        names = names_in(inner.__code__) if isinstance(inner, types.FunctionType) else ()
        for number, value in enumerate(call.args, start=1):
            self._visit(value, f"argument {number}", names, found, 0)
        for name, value in call.keywords.items():
            self._visit(value, f"argument {name!r}", names, found, 0)

    def _named(
        self,
        variables: Any,
        names: Iterable[str],
        where: str,
        found: _Uses,
        depth: int,
    ) -> None:
        for name in dict.fromkeys(names):
            if name in variables:
                value = unbound(variables[name])
                self._visit(value, f"{where}, attribute {name!r}", names, found, depth + 1)

    def _collection(
        self,
        value: Any,
        inner: Iterable[Any],
        where: str,
        names: Iterable[str],
        found: _Uses,
        depth: int,
    ) -> None:
        """Steps in nested collections are one use."""
        paths: dict[str, None] = {}
        has_mapping = is_mapping(value)
        waiting = [iter(inner)]
        while waiting and found.left > 0:
            part = next(waiting[-1], _END)
            if part is _END:
                waiting.pop()
                continue
            found.left -= 1
            path = self._references.path_of(part)
            nested_parts = None if path or isinstance(part, _PLAIN) else parts_of(part)
            if path is not None:
                paths[path] = None
            elif nested_parts is None:
                self._visit(part, where, names, found, depth + 1)
            elif id(part) not in found.seen and len(waiting) <= _MAX_DEPTH:
                found.seen.add(id(part))
                has_mapping = has_mapping or is_mapping(part)
                waiting.append(iter(nested_parts))
        if paths:
            found.uses.append(StepUse(tuple(paths), where, len(paths) > 1, has_mapping))

    def _is_foreign(self, module: Any) -> bool:
        """Whether a module defines no steps of this graph: it is of the standard library, of this
        package, or of an installed package that has none of the graph's functions."""
        if not isinstance(module, str):
            return True
        if module not in self._foreign:
            package = _package(module)
            file = getattr(sys.modules.get(module), "__file__", None) or ""
            installed = "site-packages" in file or "dist-packages" in file
            self._foreign[module] = package in (*sys.stdlib_module_names, "marin_dagster") or (
                installed and package not in self._own_packages
            )
        return self._foreign[module]


_END: Any = object()


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]
