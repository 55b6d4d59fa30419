"""JSON values: which may enter a hash or a record, and where exactly one may not."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from marin_dagster.errors import HashAttributeError
from marin_dagster.steps.text import shown

_DEEPEST = 400
"""Nesting that is deeper than this is reported as a fault."""


def identity_json(name: str, attrs: Mapping[str, Any], dep_names: list[str]) -> str:
    """The canonical text of a step's identity, byte for byte the same as Marin's.

    Raises:
        HashAttributeError: naming the step and the path of the attribute that JSON cannot hold.
    """
    try:
        text = json.dumps({"name": name, "attrs": attrs, "deps": sorted(dep_names)}, sort_keys=True)
        if "\\ud" in text:
            # Perhaps half of a surrogate pair, which can be hashed but not written to a file.
            json.dumps(attrs, ensure_ascii=False).encode()
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise _attribute_error(name, attrs) from error


def identity_hash(name: str, attrs: Mapping[str, Any], dep_names: list[str]) -> str:
    """8 hex digits of the canonical text, exactly as Marin computes them.

    Raises:
        HashAttributeError: see :func:`identity_json`.
    """
    return hashlib.sha256(identity_json(name, attrs, dep_names).encode()).hexdigest()[:8]


def _attribute_error(name: str, attrs: Mapping[str, Any]) -> HashAttributeError:
    """The error for attributes that JSON could not hold, with the path of the first offender."""
    fault = json_fault(attrs, "hash_attrs") or "hash_attrs: nested too deeply or in a circle"
    return HashAttributeError(
        f"step {name!r}: {fault}. Attributes enter the step's hash as JSON: use strings, numbers, "
        "booleans, None, lists, and dictionaries with string keys."
    )


def json_fault(value: Any, path: str) -> str | None:
    """``"<path>: <why>"`` for the first value below ``value`` that JSON cannot hold, else None."""
    # Each entry: path, value, the objects around it, and the path of its outermost container.
    pending: list[tuple[str, Any, tuple[int, ...], str]] = [(path, value, (), path)]
    while pending:
        at, item, around, outermost = pending.pop()
        if isinstance(item, str) and not _is_unicode(item):
            return f"{at}: {shown(item)} is not Unicode"
        if item is None or isinstance(item, (str, int, float, bool)):
            continue
        if id(item) in around:
            return f"{at}: contains itself"
        if len(around) > _DEEPEST:
            return f"{outermost}: nested more than {_DEEPEST} levels deep"
        if isinstance(item, dict):
            bad = [key for key in item if not isinstance(key, (str, int, float, bool, type(None)))]
            if bad:
                return f"{at}: the key {shown(bad[0])} is a {type(bad[0]).__name__}"
            if broken := [key for key in item if isinstance(key, str) and not _is_unicode(key)]:
                return f"{at}: the key {shown(broken[0])} is not Unicode"
            if len({_key_kind(key) for key in item}) > 1:
                return f"{at}: keys of different types ({', '.join(map(repr, item))})"
            children = [(f"{at}.{key}", child) for key, child in item.items()]
        elif isinstance(item, (list, tuple)):
            children = [(f"{at}[{index}]", child) for index, child in enumerate(item)]
        else:
            return f"{at}: {shown(item)} (of type {type(item).__name__})"
        inside = (*around, id(item))
        for place, child in reversed(children):
            pending.append((place, child, inside, outermost if len(around) > 1 else at))
    return None


def strings_in(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every string below ``value`` (not dictionary keys), with its path."""
    pending = [(path, value)]
    while pending:
        at, item = pending.pop()
        if isinstance(item, str):
            yield at, item
        elif isinstance(item, Mapping):
            pending.extend((f"{at}.{key}", child) for key, child in item.items())
        elif isinstance(item, (list, tuple)):
            pending.extend((f"{at}[{index}]", child) for index, child in enumerate(item))


def leaves_in(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is not a dictionary, in order, with its path: ``("model.lr", 0.1)``.

    Args:
        value: plain JSON.
        path: prefix of the paths.
    """
    for key, item in value.items():
        if isinstance(item, dict):
            yield from leaves_in(item, f"{path}{key}.")
        else:
            yield f"{path}{key}", item


def _key_kind(key: Any) -> str:
    # Python cannot sort keys of different kinds, and they are sorted before they become strings.
    return "number" if isinstance(key, (int, float)) else type(key).__name__


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
