"""Parts of functions and objects, read without running their code: no property, no ``__getattr__``,
no ``__iter__``, no ``__repr__``."""

import dataclasses
import dis
import functools
import inspect
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

MAX_VALUES = 20_000
"""Values of one collection that are looked at."""

_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "IMPORT_NAME"}
_ITERATORS: dict[type, Callable[[Any], Iterable[Any]]] = {
    # Of the built-in class: a subclass may have an __iter__ that does something.
    dict: dict.values,
    types.MappingProxyType: lambda proxy: proxy.values(),
    list: list.__iter__,
    tuple: tuple.__iter__,
    set: set.__iter__,
    frozenset: frozenset.__iter__,
    deque: deque.__iter__,
}


def innermost(function: Any) -> Any:
    """The function inside partials."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object, and those of the functions and classes that it defines."""
    waiting = [code]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(part for part in found.co_consts if isinstance(part, types.CodeType))


def names_in(code: types.CodeType) -> tuple[str, ...]:
    """Names of globals and attributes in the code."""
    found = chain.from_iterable(part.co_names for part in nested(code))
    return tuple(dict.fromkeys(found))


def loads(code: types.CodeType) -> Iterator[tuple[str, str]]:
    """The instructions that load a global or import a module, with its name."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _LOADS:
            yield instruction.opname, instruction.argval


def parts_of(value: Any) -> Iterable[Any] | None:
    """The values in a built-in collection, a dataclass or a pydantic model; None for any other
    value."""
    for kind, iterate in _ITERATORS.items():
        if isinstance(value, kind):
            return islice(iterate(value), MAX_VALUES)
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return [attribute(value, one.name) for one in dataclasses.fields(kind)]
    if isinstance(kind.__dict__.get("__pydantic_fields__"), dict):
        return list(vars(value).values())
    return None


def is_mapping(value: Any) -> bool:
    """Whether the value is a dictionary, also a read-only one."""
    return isinstance(value, (dict, types.MappingProxyType))


def attribute(value: Any, name: str) -> Any:
    """An attribute of an object or its class, without calling a property."""
    found = inspect.getattr_static(value, name, None)
    if isinstance(found, types.MemberDescriptorType):  # a slot
        try:
            return found.__get__(value)
        except AttributeError:
            return None
    return unbound(found)


def unbound(value: Any) -> Any:
    """The function in a static method, class method or property; any other value as it is."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, property):
        return value.fget
    if isinstance(value, functools.cached_property):
        return value.func
    return value
