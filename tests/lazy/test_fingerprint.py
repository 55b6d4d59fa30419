"""Canonical JSON of configurations: the same bytes in every process."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_dagster.errors import HashAttributeError, MarinDagsterWarning
from marin_dagster.steps import fingerprint
from marin_dagster.steps.fingerprint import (
    canonical_json,
    describe_drift,
    fingerprint_hash,
    register_fingerprint,
    set_strict,
)


class Color(Enum):
    RED = "red"


@dataclass
class Model:
    layers: int
    color: Color = Color.RED


class Plain:
    def __init__(self) -> None:
        self.a = 1


@pytest.fixture(autouse=True)
def _as_new(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("MARIN_FINGERPRINT_STRICT", raising=False)
    monkeypatch.setattr(fingerprint, "_encoders", {})
    fingerprint._warn_once.cache_clear()
    set_strict(None)
    yield
    set_strict(None)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": (1, 2.5)}, '{"a": [1, 2.5], "b": 1}'),
        (Model(2), '{"color": "red", "layers": 2}'),
        (Color.RED, '"red"'),
        (timedelta(days=1, microseconds=2), '{"days": 1, "microseconds": 2, "seconds": 0}'),
        (Path("/a/b"), '"/a/b"'),
        ({3, 1, 2}, '{"__set__": [1, 2, 3]}'),
        # Named here: the order in its repr differs from process to process.
        pytest.param(frozenset({"b", "a"}), '{"__set__": ["a", "b"]}', id="frozenset"),
        (np.dtype("float32"), '{"__dtype__": "float32"}'),
        (np.float32, '{"__dtype__": "float32"}'),
        (float, '{"__dtype__": "float64"}'),
        (np.float32(1.5), "1.5"),
        (np.array([[1, 2]]), '{"__array__": [[1, 2]], "dtype": "int64", "shape": [1, 2]}'),
        (Model, '{"__type__": "test_fingerprint.Model"}'),
        (str, '{"__type__": "builtins.str"}'),
    ],
    ids=str,
)
def test_each_kind_of_value_has_its_form(value: Any, expected: str) -> None:
    assert canonical_json(value) == expected


@pytest.mark.slow
def test_numbers_of_python_are_dtypes_without_numpy_too() -> None:
    code = (
        "import sys\n"
        "from marin_dagster.steps.fingerprint import canonical_json\n"
        "before = canonical_json([float, int, bool, complex, str, bytes])\n"
        "assert 'numpy' not in sys.modules and 'jax' not in sys.modules\n"
        "import numpy\n"
        "assert canonical_json([float, int, bool, complex, str, bytes]) == before, before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_type_warns_once_and_gets_a_stand_in() -> None:
    with pytest.warns(MarinDagsterWarning, match="test_fingerprint.Plain") as warned:
        first = canonical_json([Plain(), Plain()])

    assert len(warned) == 1
    stand_in = '{"__repr__": "test_fingerprint.Plain", "vars": {"a": 1}}'
    assert first == f"[{stand_in}, {stand_in}]"


@pytest.mark.parametrize("how", ["set_strict", "environment"])
def test_strict_mode_raises(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "set_strict":
        set_strict(True)
    else:
        monkeypatch.setenv("MARIN_FINGERPRINT_STRICT", "true")

    with pytest.raises(HashAttributeError, match=r"Plain, which has no canonical form"):
        canonical_json({"a": Plain()})
    set_strict(False)
    with pytest.warns(MarinDagsterWarning):
        canonical_json({"a": Plain()})


def test_a_type_can_be_taught_with_its_subclasses() -> None:
    class Special(Plain):
        pass

    register_fingerprint(Plain, lambda plain: {"plain": {plain.a}})
    set_strict(True)

    assert canonical_json(Special()) == '{"plain": {"__set__": [1]}}'


def test_what_json_cannot_hold_is_one_clear_error() -> None:
    ring: list[Any] = []
    ring.append(ring)

    with pytest.raises(HashAttributeError, match="cannot be fingerprinted"):
        canonical_json(ring)


def test_a_fingerprint_is_8_digits_of_md5() -> None:
    assert fingerprint_hash("") == "d41d8cd9"


def test_drift_is_told_field_by_field() -> None:
    old = canonical_json({"a": 1, "model": {"layers": 2}, "list": [1, 2], "gone": 1, "same": 0})
    new = canonical_json({"a": 2, "model": {"layers": 3}, "list": [1], "new": 1, "same": 0})

    assert describe_drift(old, new).splitlines() == [
        "a: 1 -> 2",
        "gone: removed 1",
        "list: [1, 2] -> [1]",
        "model.layers: 2 -> 3",
        "new: added 1",
    ]
    assert describe_drift(None, new) == describe_drift(old, old) == ""
    many = canonical_json({str(n): n for n in range(30)})
    assert describe_drift(canonical_json({}), many).splitlines()[-1] == "and 10 more"
