"""Pickles that contain the user's code, since a worker cannot import it.

Functions and classes from modules that are not installed as packages, such as the code location's
own files, are pickled by value.
"""

import io
import os
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar


def pickle_by_value(value: Any) -> bytes:
    """The value as bytes that ``pickle.loads`` can load in a worker.

    Raises:
        Exception: cloudpickle's error for a value that cannot be pickled.
    """
    import cloudpickle

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        dispatch_table: ClassVar = {
            **cloudpickle.CloudPickler.dispatch_table,
            types.CodeType: _reduce_code,
            _Cached: _reduce_cached,
        }

    buffer = io.BytesIO()
    with _registry, _own_modules_by_value():
        Pickler(buffer).dump(value)
    return buffer.getvalue()


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """As cloudpickle does, but with the file's name, for tracebacks."""
    import cloudpickle

    constructor, arguments = cloudpickle.CloudPickler.dispatch_table[types.CodeType](code)
    named = (code.co_filename if part == "<dynamic-code>" else part for part in arguments)
    return constructor, tuple(named)


_Cached = type(lru_cache(lambda: None))


def _reduce_cached(wrapper: Any) -> Any:
    """Pickle a function with ``functools.lru_cache`` or ``cache`` by value, without its cache."""
    module = sys.modules.get(wrapper.__module__)
    if _is_source_of_user(getattr(module, "__file__", None)):
        return _cached, (wrapper.__wrapped__, wrapper.cache_parameters())
    return wrapper.__reduce__()


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return lru_cache(**parameters)(function)


_registry = threading.Lock()
"""cloudpickle has one list of modules for the whole process."""


@contextmanager
def _own_modules_by_value() -> Iterator[None]:
    """Let cloudpickle pickle by value from modules that are not installed as packages."""
    import cloudpickle

    already = cloudpickle.list_registry_pickle_by_value()
    registered = []
    for name, module in list(sys.modules.items()):
        # A module that is listed under a second name is registered under its own.
        own = isinstance(module, types.ModuleType) and module.__name__ == name
        if own and name not in already and _is_source_of_user(getattr(module, "__file__", None)):
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


_INSTALLED = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep


@cache
def _is_source_of_user(file: str | None) -> bool:
    if not file or not file.endswith(".py"):
        return False
    path = os.path.realpath(file)
    return not path.startswith((*_INSTALLED, _PACKAGE)) and "site-packages" not in path
