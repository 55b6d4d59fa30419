"""``StepGraph``: the walk, its order, and what is refused when a graph is built."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.marin_like import PATIENT, MarinLike, build_golden, golden_graphs
from marin_dagster.errors import CollisionError, CycleError, GraphError
from marin_dagster.steps import StepGraph, StepSpec

CLASSES = pytest.mark.parametrize("make", [StepSpec, MarinLike])


def step(name: str, *deps: Any, **fields: Any) -> StepSpec:
    return StepSpec(name, output_path_prefix="/store", deps=deps, **fields)


def names(graph: StepGraph) -> list[str]:
    return [step.name for step in graph.steps.values()]


def post_order(terminals: list[Any]) -> list[str]:
    """The plain recursive depth-first post-order, as Marin's scheduler walks."""
    order: list[str] = []

    def visit(step: Any) -> None:
        if step.output_path not in order:
            for dep in step.deps:
                visit(dep)
            order.append(step.output_path)

    for terminal in terminals:
        visit(terminal)
    return order


def ring(*names: str, make: Callable[..., Any] = StepSpec) -> list[Any]:
    """Steps of which each depends on the next, and the last on the first."""
    steps = [make(name, output_path_prefix="/store") for name in names]
    for current, following in pairwise([*steps, steps[0]]):
        object.__setattr__(current, "deps", [following])
    return steps


def test_all_dependencies_are_walked_and_come_before_their_dependents() -> None:
    raw = step("raw")
    left, right = step("left", raw), step("right", raw)
    graph = StepGraph.from_steps([step("join", left, right)])
    assert names(graph) == ["raw", "left", "right", "join"]


def test_the_order_of_terminals_and_dependencies_is_kept() -> None:
    raw = step("raw")
    left, right = step("left", raw), step("right", raw)
    assert names(StepGraph.from_steps([right, left])) == ["raw", "right", "left"]
    assert names(StepGraph.from_steps([left, right, raw])) == ["raw", "left", "right"]


@pytest.mark.parametrize("graph", golden_graphs(), ids=range(40))
def test_the_order_of_golden_graphs_is_the_depth_first_post_order(
    graph: list[dict[str, Any]],
) -> None:
    steps = build_golden(graph)
    # The recorded graphs are random, and some put two steps at one path on purpose.
    if len({step.output_path for step in steps}) < len({step.name_with_hash for step in steps}):
        with pytest.raises(CollisionError):
            StepGraph.from_steps(steps)
    else:
        for terminals in (steps, steps[::-1], steps[-1:]):
            found = StepGraph.from_steps(terminals)
            assert list(found.steps) == post_order(terminals)


@PATIENT
@given(data=st.data())
def test_the_order_of_random_graphs_is_the_depth_first_post_order(data: st.DataObject) -> None:
    steps: list[StepSpec] = []
    for index in range(data.draw(st.integers(1, 12))):
        deps = data.draw(st.lists(st.sampled_from(steps), max_size=4)) if steps else []
        # Sometimes as two objects, which are one step.
        steps.extend(step(f"s{index}", *deps) for _ in range(data.draw(st.integers(1, 2))))
    terminals = data.draw(st.lists(st.sampled_from(steps), min_size=1, max_size=4))
    graph = StepGraph.from_steps(terminals)
    assert list(graph.steps) == post_order(terminals)
    assert graph.terminals == tuple(dict.fromkeys(step.output_path for step in terminals))


def test_steps_with_one_output_path_and_one_identity_are_one() -> None:
    first, again = step("raw", hash_attrs={"n": 1}), step("raw", hash_attrs={"n": 1})
    graph = StepGraph.from_steps([step("a", first), step("b", again), first, again])
    assert names(graph) == ["raw", "a", "b"]
    assert graph.steps[first.output_path] is first


def test_terminals_are_listed_once_in_their_order() -> None:
    a, b = step("a"), step("b")
    graph = StepGraph.from_steps([b, a, b])
    assert graph.terminals == (b.output_path, a.output_path)


def test_dependencies_and_dependents_are_listed_once() -> None:
    raw = step("raw")
    twice, once = step("twice", raw, raw), step("once", raw)
    graph = StepGraph.from_steps([twice, once])
    assert graph.dependencies(twice.output_path) == (raw.output_path,)
    assert graph.dependents == {
        raw.output_path: (twice.output_path, once.output_path),
        twice.output_path: (),
        once.output_path: (),
    }


def test_an_empty_graph_is_a_graph() -> None:
    graph = StepGraph.from_steps([])
    assert not graph.steps
    assert not graph.terminals
    assert graph.dependents == {}


def test_a_generator_of_terminals_is_walked_once() -> None:
    assert names(StepGraph.from_steps(step(name) for name in "ab")) == ["a", "b"]


def test_a_graph_mixes_marins_class_with_ours() -> None:
    raw = MarinLike("raw", output_path_prefix="/store")
    middle = step("middle", raw)
    last = MarinLike("last", output_path_prefix="/store", deps=[middle, raw])
    assert names(StepGraph.from_steps([last])) == ["raw", "middle", "last"]


@CLASSES
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_cycle_is_named_whole(size: int, make: Callable[..., Any]) -> None:
    steps = ring(*(f"r{index}" for index in range(size)), make=make)
    entrance = make("entrance", output_path_prefix="/store", deps=[steps[0]])
    with pytest.raises(CycleError) as caught:
        StepGraph.from_steps([entrance])
    whole = " -> ".join([*(step.name for step in steps), steps[0].name])
    assert whole in str(caught.value)
    assert "entrance" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_cycle_is_found_below_a_second_terminal() -> None:
    fine = step("fine")
    with pytest.raises(CycleError, match="a -> b -> a"):
        StepGraph.from_steps([fine, ring("a", "b")[0]])


def test_hashing_a_cycle_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(CycleError, match="a -> b -> a"):
        ring("a", "b")[0].hash_id  # noqa: B018


@CLASSES
def test_two_different_steps_at_one_path_are_an_error_naming_both(make: Callable[..., Any]) -> None:
    one = make("tokens", hash_attrs={"n": 1}, override_output_path="/pinned/tokens")
    other = make("tokens", hash_attrs={"n": 2}, override_output_path="/pinned/tokens")
    with pytest.raises(CollisionError) as caught:
        StepGraph.from_steps([one, make("reader", output_path_prefix="/store", deps=[other])])
    for part in (one.name_with_hash, other.name_with_hash, "/pinned/tokens"):
        assert part in str(caught.value)


def test_two_different_steps_in_one_folder_collide_however_the_path_is_spelled() -> None:
    one = step("one", override_output_path="/pinned/tokens")
    other = step("other", override_output_path="/pinned//tokens/")
    with pytest.raises(CollisionError, match=r"one_.*other_"):
        StepGraph.from_steps([one, other])


@pytest.mark.parametrize("fields", [{"fn": "train.py"}, {"resources": "H100"}], ids=repr)
def test_what_cannot_be_run_is_an_error_naming_the_step(fields: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match="step 'train'"):
        StepGraph.from_steps([step("last", step("train", **fields))])


@pytest.mark.parametrize("value", ["raw/text", 7, None, {"name": "raw"}, StepSpec], ids=repr)
def test_a_terminal_that_is_no_step_is_an_error(value: Any) -> None:
    with pytest.raises(GraphError, match="steps"):
        StepGraph.from_steps([step("fine"), value])


@CLASSES
@pytest.mark.parametrize("value", ["raw/text", 7, None, {"name": "raw"}], ids=repr)
def test_a_dependency_that_is_no_step_is_an_error_naming_the_step(
    value: Any, make: Callable[..., Any]
) -> None:
    fine = make("fine", output_path_prefix="/store")
    broken = make("tokenize", output_path_prefix="/store", deps=[fine, value])
    with pytest.raises(GraphError, match="step 'tokenize'"):
        StepGraph.from_steps([make("train", output_path_prefix="/store", deps=[broken])])
