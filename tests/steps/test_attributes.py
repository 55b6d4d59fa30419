"""Attributes that JSON cannot hold are refused when the graph is built, by step and by path."""

from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from helpers.marin_like import MarinLike
from marin_dagster.errors import GraphError, HashAttributeError, MarinDagsterWarning
from marin_dagster.steps import StepGraph, StepSpec

CLASSES = pytest.mark.parametrize("make", [StepSpec, MarinLike])


def nested_lists(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def circle_of_lists() -> list[Any]:
    inner: list[Any] = []
    inner.append([inner])
    return inner


def circle_of_dicts() -> dict[str, Any]:
    outer: dict[str, Any] = {"down": {}}
    outer["down"]["up"] = outer
    return outer


OFFENDERS: dict[str, tuple[dict[Any, Any], str]] = {
    "set": ({"filters": {"langs": {"en", "de"}}}, "hash_attrs.filters.langs"),
    "frozenset in a list": ({"runs": [1, [frozenset()]]}, "hash_attrs.runs[1][0]"),
    "keys of str and int": ({"weights": {"web": 1, 2: 1}}, "hash_attrs.weights"),
    "keys of None and int": ({"weights": {None: 1, 2: 1}}, "hash_attrs.weights"),
    "keys of str and int at the top": ({"web": 1, 2: 1}, "hash_attrs"),
    "a tuple as key": ({"grid": {(1, 2): "x"}}, "hash_attrs.grid"),
    "a path": ({"data": [{"file": Path("x")}]}, "hash_attrs.data[0].file"),
    "a date": ({"cutoff": date(2026, 1, 2)}, "hash_attrs.cutoff"),
    "bytes": ({"magic": b"x"}, "hash_attrs.magic"),
    "text that is not Unicode": ({"files": ["caf\udce9"]}, "hash_attrs.files[0]"),
    "a key that is not Unicode": ({"files": {"caf\udce9": 1}}, "hash_attrs.files"),
    "a function": ({"score": len}, "hash_attrs.score"),
    "a class": ({"model": dict}, "hash_attrs.model"),
    "a circle of lists": ({"mix": circle_of_lists()}, "hash_attrs.mix[0][0]"),
    "a circle of dictionaries": ({"mix": circle_of_dicts()}, "hash_attrs.mix.down.up"),
    "deep nesting": ({"fine": 1, "tree": nested_lists(20_000)}, "hash_attrs.tree"),
}


@CLASSES
@pytest.mark.parametrize(("attrs", "place"), OFFENDERS.values(), ids=OFFENDERS)
def test_a_graph_with_an_attribute_that_json_cannot_hold_is_refused_by_step_and_path(
    attrs: dict[Any, Any], place: str, make: Callable[..., Any]
) -> None:
    fine = make("download", output_path_prefix="/store", hash_attrs={"n": 1})
    step = make("tokenize", output_path_prefix="/store", deps=[fine], hash_attrs=attrs)
    terminal = make("train", output_path_prefix="/store", deps=[step])
    with pytest.raises(HashAttributeError) as caught:
        StepGraph.from_steps([terminal])
    message = str(caught.value)
    assert "step 'tokenize'" in message
    assert f" {place}" in message
    assert len(message) < 2_000, "the message must stay readable"


def test_the_error_is_a_graph_error_and_a_type_error() -> None:
    with pytest.raises(GraphError):
        StepGraph.from_steps([StepSpec("a", hash_attrs={"x": {1}})])
    with pytest.raises(TypeError):
        StepGraph.from_steps([StepSpec("a", hash_attrs={"x": {1}})])


def test_the_path_is_that_of_the_first_offender_and_not_of_its_neighbours() -> None:
    shared = [1, 2]
    attrs = {"a": shared, "b": [shared, shared, {"ok": None}], "c": {"bad": {3}}, "d": {4}}
    with pytest.raises(HashAttributeError, match=r"hash_attrs\.c\.bad"):
        StepGraph.from_steps([StepSpec("step", hash_attrs=attrs)])


@CLASSES
def test_one_object_used_twice_is_no_circle(make: Callable[..., Any]) -> None:
    shared = {"x": [1]}
    step = make("step", output_path_prefix="/store", hash_attrs={"a": shared, "b": [shared]})
    assert StepGraph.from_steps([step]).steps


def test_special_strings_and_keys_are_accepted() -> None:
    attrs = {"": 1, "é": "\U0001f600", "n": {1: 1, 2: 2}, "b": {True: 1}, "f": -0.0, "big": 10**30}
    assert StepGraph.from_steps([StepSpec("step", hash_attrs=attrs)]).steps


@CLASSES
def test_an_attribute_that_holds_a_dependencys_output_path_is_warned_of(
    make: Callable[..., Any],
) -> None:
    dep = make("corpus", output_path_prefix="/store")
    attrs = {"inputs": [{"glob": f"{dep.output_path}/*.jsonl"}], "n": 1}
    step = make("tokenize", output_path_prefix="/store", deps=[dep], hash_attrs=attrs)
    with pytest.warns(MarinDagsterWarning) as caught:
        StepGraph.from_steps([step])
    [warning] = caught
    for part in ("step 'tokenize'", "hash_attrs.inputs[0].glob", dep.output_path):
        assert part in str(warning.message)


def test_each_step_is_warned_of_once_even_when_it_is_reached_many_ways() -> None:
    dep = StepSpec("corpus", output_path_prefix="/store")
    attrs = {"input": dep.output_path}
    step = StepSpec("tokenize", output_path_prefix="/store", deps=[dep, dep], hash_attrs=attrs)
    readers = [StepSpec(name, output_path_prefix="/store", deps=[step]) for name in "xyz"]
    with pytest.warns(MarinDagsterWarning) as caught:
        StepGraph.from_steps([*readers, step])
    assert Counter(str(warning.message) for warning in caught).most_common(1)[0][1] == 1


def test_attributes_without_a_dependencys_path_are_not_warned_of(
    recwarn: pytest.WarningsRecorder,
) -> None:
    dep = StepSpec("corpus", output_path_prefix="/store")
    attrs = {"name": dep.name_with_hash, "prefix": "/store", "other": "/elsewhere/corpus"}
    StepGraph.from_steps([StepSpec("tokenize", deps=[dep], hash_attrs=attrs)])
    assert not recwarn.list
