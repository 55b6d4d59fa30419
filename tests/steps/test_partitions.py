"""``PartitionedSteps``: which step a partition has of each name, and what partitions share."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.marin_like import PATIENT
from marin_dagster.errors import CycleError, GraphError
from marin_dagster.steps import StepGraph, StepSpec
from marin_dagster.steps.partitions import PartitionedSteps

DAYS = [f"2026-11-{day:02}" for day in range(1, 8)]


def step(name: str, *deps: Any, **attrs: Any) -> StepSpec:
    return StepSpec(name, output_path_prefix="/store", deps=deps, hash_attrs=attrs, fn=print)


def daily(day: str) -> list[StepSpec]:
    """A day's training with a tokenizer for all days."""
    prepared = step("prep", day=day)
    return [step("evaluate", step("train", prepared, step("tokenizer")))]


def resumed(day: str) -> list[StepSpec]:
    """Each day's training starts from the day before."""
    model: StepSpec | None = None
    for one in DAYS[: DAYS.index(day) + 1]:
        model = step("train", step("prep", day=one), *([model] if model else []))
    assert model is not None
    return [step("evaluate", model)]


def sweep(rate: str) -> list[StepSpec]:
    """A point of a sweep, and the leaderboard over all points."""
    points = {one: step("train", lr=one) for one in ("0.1", "0.2", "0.4")}
    return [points[rate], step("leaderboard", *points.values())]


def test_a_partition_has_one_step_of_each_name() -> None:
    partitioned = PartitionedSteps.from_function(daily, DAYS[:3])

    partition = partitioned.at(DAYS[4])

    assert list(partition.steps) == ["prep", "tokenizer", "train", "evaluate"]
    expected = StepGraph.from_steps(daily(DAYS[4]))
    assert partition.paths == expected.steps.keys()
    assert partition.inputs("train") == (frozenset({"prep", "tokenizer"}), {})


def test_a_step_with_one_path_in_all_partitions_is_shared() -> None:
    assert PartitionedSteps.from_function(daily, DAYS[:2]).shared == {"tokenizer"}


def test_one_sample_does_not_show_what_is_shared() -> None:
    assert PartitionedSteps.from_function(daily, DAYS[:1]).shared == frozenset()
    given = PartitionedSteps.from_function(daily, DAYS[:1], shared=["tokenizer"])
    assert given.shared == {"tokenizer"}


def test_the_step_of_today_and_that_of_yesterday() -> None:
    partitioned = PartitionedSteps.from_function(resumed, DAYS[:2])

    assert partitioned.shared == frozenset()
    third = partitioned.at(DAYS[2])
    assert third.steps["prep"].hash_attrs == {"day": DAYS[2]}
    own, others = third.inputs("train")
    assert own == {"prep"}
    assert others == {"train": (partitioned.at(DAYS[1]).steps["train"].output_path,)}
    assert partitioned.partitions_read(DAYS[2], "train", DAYS) == {"train": (DAYS[1],)}
    assert partitioned.partitions_read(DAYS[0], "train", DAYS) == {}
    assert partitioned.partitions_read(DAYS[2], "evaluate", DAYS) == {}


def test_a_step_over_all_partitions() -> None:
    keys = ["0.1", "0.2", "0.4"]
    partitioned = PartitionedSteps.from_function(sweep, keys)

    assert partitioned.shared == {"leaderboard"}
    for key in keys:
        assert partitioned.at(key).steps["train"].hash_attrs == {"lr": key}
        read = partitioned.partitions_read(key, "leaderboard", keys)
        assert sorted(read["train"]) == sorted(set(keys) - {key})
        assert partitioned.at(key).inputs("leaderboard")[0] == {"train"}


def _only_in(key: str, make: Callable[[str], Any], other: Callable[[str], Any]) -> Any:
    return lambda asked: make(asked) if asked == key else other(asked)


def _needs_two(day: str) -> list[StepSpec]:
    return [step("evaluate", step("train", lr=1, day=day), step("train", lr=2, day=day))]


BROKEN: list[tuple[Any, str]] = [
    (
        _only_in(DAYS[0], daily, lambda day: [*daily(day), step("extra", day=day)]),
        "partitions '2026-11-01' and '2026-11-02' have different steps: '2026-11-02' has 'extra', "
        "'2026-11-01' does not",
    ),
    (
        _only_in(DAYS[0], lambda day: [*daily(day), step("extra", day=day)], daily),
        "have different steps: '2026-11-01' has 'extra', '2026-11-02' does not",
    ),
    (
        _only_in(
            DAYS[0],
            lambda day: [step("b", step("a", day=day))],
            lambda day: [step("b", day=day), step("a", day=day)],
        ),
        "step 'b' depends on 'a' in '2026-11-01' only",
    ),
    (
        _only_in(
            DAYS[0],
            lambda day: [step("b", day=day), step("a", day=day)],
            lambda day: [step("b", step("a", day=day))],
        ),
        "step 'b' depends on 'a' in '2026-11-02' only",
    ),
    (
        _only_in(
            DAYS[0],
            lambda day: [step("a", day=day)],
            lambda day: [
                StepSpec("a", output_path_prefix="/store", hash_attrs={"day": day}, fn=None)
            ],
        ),
        "step 'a' has no function in '2026-11-02' only",
    ),
    (_needs_two, "partition '2026-11-01': 2 steps are called 'train'"),
    (
        lambda day: 1 / 0,
        "partition '2026-11-01': the function that returns its steps raised ZeroDivisionError",
    ),
    (lambda day: [day], "partition '2026-11-01': steps: '2026-11-01' is a str, not a step"),
]


@pytest.mark.parametrize(("steps_for", "message"), BROKEN)
def test_partitions_that_do_not_fit_together(steps_for: Any, message: str) -> None:
    with pytest.raises(GraphError) as raised:
        PartitionedSteps.from_function(steps_for, DAYS[:2])
    assert message in str(raised.value)


def test_a_partition_that_differs_is_found_when_it_is_asked_for() -> None:
    changed = _only_in(DAYS[5], lambda day: [*daily(day), step("extra")], daily)
    partitioned = PartitionedSteps.from_function(changed, DAYS[:3])

    with pytest.raises(GraphError, match=r"'2026-11-06' has 'extra', '2026-11-01' does not"):
        partitioned.at(DAYS[5])


def test_an_input_from_another_partition_that_no_sample_shows() -> None:
    def steps_for(day: str) -> list[StepSpec]:
        late = [step("prep", day=DAYS[0])] if day == DAYS[5] else []
        prepared = step("prep", day=day)
        return [prepared, step("train", prepared), step("report", *late, day=day)]

    partitioned = PartitionedSteps.from_function(steps_for, DAYS[:3])

    with pytest.raises(GraphError, match=r"'report' depends on 'prep' in '2026-11-06' only"):
        partitioned.at(DAYS[5])


def test_a_ring_keeps_its_kind_of_error() -> None:
    def ring(day: str) -> list[StepSpec]:
        first, second = step("first"), step("second")
        object.__setattr__(first, "deps", [second])
        object.__setattr__(second, "deps", [first])
        return [first]

    with pytest.raises(CycleError, match="partition '2026-11-01': steps depend on each other"):
        PartitionedSteps.from_function(ring, DAYS[:1])


def test_a_shared_step_whose_path_contains_the_partition() -> None:
    partitioned = PartitionedSteps.from_function(daily, DAYS[:1], shared=["train"])

    with pytest.raises(GraphError, match="share the step 'train', but its output paths differ"):
        partitioned.at(DAYS[1])


def test_an_unknown_shared_name() -> None:
    with pytest.raises(GraphError, match="no step is called 'tokeniser'"):
        PartitionedSteps.from_function(daily, DAYS[:1], shared=["tokeniser"])


def test_without_a_partition_there_must_be_an_example() -> None:
    with pytest.raises(GraphError, match="there is no partition yet"):
        PartitionedSteps.from_function(daily, [])


def test_an_input_that_belongs_to_no_partition() -> None:
    def steps_for(day: str) -> list[StepSpec]:
        foreign = step("train", day="never")
        return [step("train", foreign, day=day)]

    partitioned = PartitionedSteps.from_function(steps_for, DAYS[:2])

    with pytest.raises(GraphError, match="is not the output of 'train' in any partition"):
        partitioned.partitions_read(DAYS[1], "train", DAYS)


def test_a_partition_is_built_once_while_it_is_in_use() -> None:
    asked: list[str] = []

    def counted(key: str) -> list[StepSpec]:
        asked.append(key)
        return daily(key)

    keys = [str(number) for number in range(200)]
    partitioned = PartitionedSteps.from_function(counted, keys[:2])
    for key in keys:
        partitioned.at(key)
        partitioned.at(key)
        partitioned.at(keys[0])

    assert asked == keys
    partitioned.at(keys[5])
    assert asked == [*keys, keys[5]]  # not all stay in memory


@pytest.mark.slow
@PATIENT
@given(st.data())
def test_a_partition_is_what_a_graph_of_its_own_would_be(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    edges = {
        index: data.draw(st.sets(st.integers(0, index - 1))) if index else set()
        for index in range(size)
    }
    dated = data.draw(st.sets(st.integers(0, size - 1)))
    resuming = data.draw(st.sets(st.sampled_from(sorted(dated)))) if dated else set()

    def steps_for(day: str) -> list[StepSpec]:
        at = DAYS.index(day)
        before = {one.name: one for one in steps_for(DAYS[at - 1])} if at else {}
        made: list[StepSpec] = []
        for index in range(size):
            deps = [made[dep] for dep in sorted(edges[index])]
            if index in resuming and at:
                deps.append(before[f"s{index}"])
            made.append(step(f"s{index}", *deps, **({"day": day} if index in dated else {})))
        return made

    partitioned = PartitionedSteps.from_function(steps_for, DAYS[:3])
    for day in DAYS[:5]:
        fresh = StepGraph.from_steps(steps_for(day))
        partition = partitioned.at(day)
        assert partition.graph.steps.keys() == fresh.steps.keys()
        assert {found.output_path for found in partition.steps.values()} == set(fresh.terminals)
        for index in range(size):
            read = partitioned.partitions_read(day, f"s{index}", DAYS)
            expected = DAYS[: DAYS.index(day)][-1:] if index in resuming else []
            assert list(read.get(f"s{index}", ())) == expected
    varying = {f"s{index}" for index in _downstream(edges, dated)}
    assert partitioned.shared == {f"s{index}" for index in range(size)} - varying


def _downstream(edges: dict[int, set[int]], start: set[int]) -> set[int]:
    found: set[int] = set()
    for index in sorted(edges):
        if index in start or edges[index] & found:
            found.add(index)
    return found
