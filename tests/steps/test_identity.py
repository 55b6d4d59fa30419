"""A step's identity: what enters the hash, what does not, and that it is Marin's byte for byte."""

import dataclasses
import hashlib
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.marin_like import PATIENT, MarinLike, build_golden, golden_graphs
from marin_dagster.errors import GraphError
from marin_dagster.steps import ResourceConfig, StepGraph, StepSpec

GRAPHS = golden_graphs()


def hash_of(**fields: Any) -> str:
    return StepSpec("step", **fields).hash_id


def test_the_golden_data_holds_158_steps() -> None:
    assert sum(map(len, GRAPHS)) == 158


@pytest.mark.parametrize("graph", GRAPHS, ids=range(len(GRAPHS)))
def test_every_golden_identity_is_reproduced(graph: list[dict[str, Any]]) -> None:
    for step, node in zip(build_golden(graph), graph, strict=True):
        found = {name: getattr(step, name) for name in node["expected"]}
        assert found == node["expected"]


@pytest.mark.parametrize("graph", GRAPHS, ids=range(len(GRAPHS)))
def test_golden_identities_do_not_depend_on_which_step_is_asked_first(
    graph: list[dict[str, Any]],
) -> None:
    steps = build_golden(graph)
    order = list(range(len(steps)))
    random.Random(len(graph)).shuffle(order)
    for index in order:
        assert steps[index].name_with_hash == graph[index]["expected"]["name_with_hash"]


@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("graph", GRAPHS, ids=range(len(GRAPHS)))
def test_golden_identities_hold_when_marins_class_and_ours_are_mixed(
    graph: list[dict[str, Any]], parity: int
) -> None:
    steps = build_golden(graph, lambda index: StepSpec if index % 2 == parity else MarinLike)
    for step, node in zip(steps, graph, strict=True):
        assert step.name_with_hash == node["expected"]["name_with_hash"]
        assert list(step.dep_names) == node["expected"]["dep_names"]


def test_the_id_is_the_name_with_hash() -> None:
    step = StepSpec("a/b", hash_attrs={"n": 1})
    assert step.id == step.name_with_hash == f"a/b_{step.hash_id}"
    assert len(step.hash_id) == 8


def test_the_order_of_dependencies_does_not_matter() -> None:
    first, second = StepSpec("first"), StepSpec("second")
    assert hash_of(deps=[first, second]) == hash_of(deps=[second, first])


def test_a_dependency_listed_twice_counts_twice() -> None:
    dep = StepSpec("dep")
    assert len({hash_of(), hash_of(deps=[dep]), hash_of(deps=[dep, dep])}) == 3


def test_a_changed_attribute_changes_every_step_below() -> None:
    def last(value: int) -> StepSpec:
        first = StepSpec("first", hash_attrs={"value": value})
        return StepSpec("last", deps=[StepSpec("middle", deps=[first])])

    assert last(1).hash_id == last(1).hash_id
    assert last(1).hash_id != last(2).hash_id


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"a": (1, (2,))}, {"a": [1, [2]]}, id="tuple and list"),
        pytest.param({"a": {1: "x"}}, {"a": {"1": "x"}}, id="int key and str key"),
        pytest.param({1: "x"}, {"1": "x"}, id="int key and str key at the top"),
        pytest.param({"a": 1, "b": 2}, {"b": 2, "a": 1}, id="order of keys"),
    ],
)
def test_attributes_that_are_one_in_json_are_one(one: Any, other: Any) -> None:
    assert hash_of(hash_attrs=one) == hash_of(hash_attrs=other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(1, 1.0, id="int and float"),
        pytest.param(1, True, id="int and bool"),
        pytest.param(0, False, id="zero and bool"),
        pytest.param(1, "1", id="int and str"),
        pytest.param(None, "null", id="None and str"),
        pytest.param([1, 2], [2, 1], id="order of a list"),
        pytest.param("\u00e9", "e\u0301", id="composed and decomposed"),
    ],
)
def test_attributes_that_differ_in_json_differ(one: Any, other: Any) -> None:
    assert hash_of(hash_attrs={"a": one}) != hash_of(hash_attrs={"a": other})


def test_prefix_override_function_and_resources_do_not_enter_the_hash() -> None:
    plain = StepSpec("step", hash_attrs={"n": 1})
    dressed = StepSpec(
        "step",
        hash_attrs={"n": 1},
        output_path_prefix="s3://bucket/elsewhere",
        override_output_path="by/hand",
        fingerprint_payload='{"any": 1}',
        writes_record=True,
        fn=lambda output_path: None,
        resources=ResourceConfig.with_gpu("H100", 8),
    )
    assert dressed.name_with_hash == plain.name_with_hash


def test_names_and_paths_of_dependencies_keep_the_order_they_were_given_in() -> None:
    deps = [StepSpec(name) for name in ("z", "a", "m", "a")]
    step = StepSpec("step", deps=deps)
    assert step.dep_names == [dep.name_with_hash for dep in deps]
    assert step.dep_paths == [dep.output_path for dep in deps]


def test_changing_the_callers_list_later_changes_no_identity() -> None:
    deps = [StepSpec("dep")]
    step = StepSpec("step", deps=deps)
    deps.append(StepSpec("late"))
    assert step.dep_names == [deps[0].name_with_hash]
    assert step.hash_id == hash_of(deps=deps[:1])


def test_a_step_is_frozen() -> None:
    step = StepSpec("step")
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.name = "other"  # type: ignore[misc]


def test_replacing_a_field_gives_a_step_with_its_own_identity() -> None:
    step = StepSpec("step", hash_attrs={"n": 1})
    known = step.name_with_hash, step.output_path
    other = dataclasses.replace(step, hash_attrs={"n": 2})
    assert other.hash_id == hash_of(hash_attrs={"n": 2})
    assert (step.name_with_hash, step.output_path) == known


@pytest.mark.parametrize("deps", ["a step's name", 7, None, {"dep": 1}])
def test_dependencies_that_are_no_list_are_an_error_naming_the_step(deps: Any) -> None:
    with pytest.raises(GraphError, match="step 'tokenize'"):
        StepSpec("tokenize", deps=deps)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.slow
@PATIENT
@given(
    attrs=st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=4),
    dep_names=st.lists(st.sampled_from(["a", "b/c", "é"]), max_size=4),
)
def test_the_identity_is_the_sha256_of_the_sorted_json(
    attrs: dict[str, Any], dep_names: list[str]
) -> None:
    deps = [StepSpec(name) for name in dep_names]
    text = json.dumps(
        {"name": "x", "attrs": attrs, "deps": sorted(dep.name_with_hash for dep in deps)},
        sort_keys=True,
    )
    step = StepSpec("x", hash_attrs=attrs, deps=deps)
    assert step.hash_id == hashlib.sha256(text.encode()).hexdigest()[:8]
    assert StepGraph.from_steps([step]).terminals == (step.output_path,)


def test_nan_and_infinity_are_hashed_as_marin_hashes_them() -> None:
    step = StepSpec("train", hash_attrs={"clip": float("inf"), "seed": float("nan")})
    text = '{"attrs": {"clip": Infinity, "seed": NaN}, "deps": [], "name": "train"}'
    assert step.hash_id == hashlib.sha256(text.encode()).hexdigest()[:8]
