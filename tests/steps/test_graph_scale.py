"""Long chains and dense graphs: walked, hashed and planned without recursion or blow-up."""

from collections.abc import Callable
from typing import Any

import pytest

from helpers.marin_like import MarinLike, chain
from marin_dagster.errors import CycleError
from marin_dagster.steps import StepGraph, StepSpec, plan_run

pytestmark = pytest.mark.slow

LENGTH = 10_000
CLASSES = pytest.mark.parametrize("make", [StepSpec, MarinLike])


@CLASSES
def test_a_chain_of_10_000_steps_is_walked_and_planned(make: Callable[..., Any]) -> None:
    steps = chain(LENGTH, make)
    graph = StepGraph.from_steps([steps[-1]])
    assert [step.name for step in graph.steps.values()] == [step.name for step in steps]
    paths = list(graph.steps)

    nothing = plan_run(graph, is_built=lambda path: False)
    assert nothing.run == frozenset(paths)
    last = plan_run(graph, is_built=lambda path: path == paths[-1])
    assert (last.run, last.hits) == (frozenset(), {paths[-1]})
    half = plan_run(graph, is_built=lambda path: path == paths[LENGTH // 2])
    assert half.run == frozenset(paths[LENGTH // 2 + 1 :])
    assert half.pruned == frozenset(paths[: LENGTH // 2])


def test_the_last_step_of_a_chain_of_10_000_is_hashed_first() -> None:
    steps = chain(LENGTH)
    expected = steps[-1].hash_id
    again = chain(LENGTH)
    assert [step.hash_id for step in again][-1] == expected
    assert steps[-1].output_path == f"/store/s{LENGTH - 1}_{expected}"


def test_a_chain_that_mixes_both_classes_is_hashed_alike() -> None:
    mixed: list[Any] = []
    for index in range(LENGTH):
        make: Any = MarinLike if index % 2 else StepSpec
        mixed.append(make(f"s{index}", output_path_prefix="/store", deps=mixed[-1:]))
    StepGraph.from_steps([mixed[-1]])
    assert mixed[-1].hash_id == chain(LENGTH)[-1].hash_id


def test_a_ring_of_10_000_steps_is_an_error_and_no_overflow() -> None:
    steps = chain(LENGTH)
    object.__setattr__(steps[0], "deps", [steps[-1]])
    with pytest.raises(CycleError):
        StepGraph.from_steps([steps[-1]])


@CLASSES
def test_a_graph_with_very_many_paths_is_walked_once(make: Callable[..., Any]) -> None:
    layer: list[Any] = []
    for depth in range(40):
        layer = [
            make(f"d{depth}/{index}", output_path_prefix="/store", deps=layer) for index in range(4)
        ]
    graph = StepGraph.from_steps(layer)
    assert len(graph.steps) == 160
    assert len(plan_run(graph, is_built=lambda path: False).run) == 160
