"""Fingerprints of configurations: canonical JSON that is the same in every process, and its hash.

The bytes are the same as Marin's, and so is the fingerprint of a recipe. A value without a
canonical form gets a substitute and one warning; in strict mode it is an error. Arrays and dtypes
of numpy and JAX are recognized once the user has imported these libraries.
"""

import dataclasses
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from marin_dagster.errors import HashAttributeError, MarinDagsterWarning
from marin_dagster.steps.diff import changes
from marin_dagster.steps.text import limit_lines, shown

STRICT_VARIABLE = "MARIN_FINGERPRINT_STRICT"
"""Environment variable that turns strict mode on (``1``, ``true`` or ``yes``), as in Marin."""

_DTYPES_OF_TYPES = {float: "float64", int: "int64", bool: "bool", complex: "complex128"}
"""The dtypes that numpy uses for Python's number types."""
_DTYPE_KINDS = "biufcV"

_encoders: dict[type, Callable[[Any], Any]] = {}
_strict: bool | None = None


def fingerprint_hash(payload: str) -> str:
    """8 hex digits of the MD5 of a canonical payload, as in Marin."""
    return hashlib.md5(payload.encode(), usedforsecurity=False).hexdigest()[:8]


def canonical_json(config: Any) -> str:
    """The canonical JSON of a configuration: what a fingerprint hashes.

    Sets are sorted; enums become their value, paths text, dtypes their name, arrays their content
    and shape, classes their full name.

    Raises:
        HashAttributeError: strict mode, and a value has no canonical form; or a value that JSON
            cannot hold at all, such as a list that contains itself.
    """
    try:
        return json.dumps(config, sort_keys=True, default=_canonical)
    except HashAttributeError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise HashAttributeError(f"a configuration cannot be fingerprinted: {error}") from error


def register_fingerprint(kind: type, encode: Callable[[Any], Any]) -> None:
    """Define the canonical form of a type.

    Args:
        kind: the type, with its subclasses.
        encode: returns the canonical form of a value, which may hold whatever has a canonical form.
    """
    _encoders[kind] = encode


def set_strict(enabled: bool | None) -> None:
    """Whether a value without a canonical form is an error; None leaves it to the environment."""
    global _strict
    _strict = enabled


def describe_drift(recorded: str | None, current: str | None) -> str:
    """How one canonical payload differs from another: a line for each field, up to 20 of them.

    Empty when either is missing, or when they are the same.
    """
    if recorded is None or current is None:
        return ""
    return "\n".join(limit_lines(changes(json.loads(recorded), json.loads(current))))


def _canonical(value: Any) -> Any:
    """The JSON form of a value that the encoder does not know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, timedelta):
        names = ("days", "seconds", "microseconds")
        return {name: getattr(value, name) for name in names}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return {"__set__": sorted(value, key=canonical_json)}
    if isinstance(value, type):
        dtype = _dtype_of(value)
        name = f"{value.__module__}.{value.__qualname__}"
        return {"__type__": name} if dtype is None else {"__dtype__": dtype}
    known, form = _of_arrays(value)
    if known:
        return form
    for kind in type(value).__mro__:
        if kind in _encoders:
            return _encoders[kind](value)
    return _stand_in(value)


def _of_arrays(value: Any) -> tuple[bool, Any]:
    """``(True, form)`` for values of numpy or JAX, else ``(False, None)``."""
    numpy, jax = sys.modules.get("numpy"), sys.modules.get("jax")
    if numpy is None:
        return False, None
    if isinstance(value, numpy.dtype):
        return True, {"__dtype__": value.name}
    if isinstance(value, numpy.generic):
        return True, value.item()
    # JAX may be half imported by another thread.
    of_jax = getattr(jax, "Array", None)
    if isinstance(value, numpy.ndarray) or (of_jax is not None and isinstance(value, of_jax)):
        array = numpy.asarray(value)
        return True, {
            "__array__": array.tolist(),
            "dtype": array.dtype.name,
            "shape": list(array.shape),
        }
    return False, None


def _dtype_of(kind: type) -> str | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return _DTYPES_OF_TYPES.get(kind)
    try:
        dtype = numpy.dtype(kind)
    except TypeError:
        return None
    # numpy accepts any class as "object", which is not a dtype here.
    return str(dtype.name) if dtype.kind in _DTYPE_KINDS else None


def _stand_in(value: Any) -> dict[str, Any]:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _is_strict():
        raise HashAttributeError(
            f"{shown(value)} is a {name}, which has no canonical form, so its fingerprint could "
            "differ between processes. Use a dataclass or an enum, define a "
            "form with register_fingerprint, or turn strict mode off."
        )
    _warn_once(name)
    if hasattr(value, "__dict__"):
        return {"__repr__": name, "vars": vars(value)}
    return {"__repr__": name, "str": repr(value)}


@cache
def _warn_once(name: str) -> None:
    warnings.warn(
        f"a configuration holds a {name}, which has no canonical form, so its fingerprint may "
        "differ between processes. Define a form with register_fingerprint.",
        MarinDagsterWarning,
        stacklevel=2,
    )


def _is_strict() -> bool:
    if _strict is not None:
        return _strict
    return os.environ.get(STRICT_VARIABLE, "").lower() in ("1", "true", "yes")
