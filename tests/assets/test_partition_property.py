"""A random function of partitions does what a graph of its own would do for each partition.

The same steps twice, each in a store and an instance of its own: as partitions of one graph, and as
a fresh graph for each key whose assets are named after the partition.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.runs import Run, memory_instance, run_job, stale_status
from marin_dagster import DagsterMarinTranslator, StepSpec, build_definitions
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.partitions import PartitionedSteps

DAYS = ["2026-11-01", "2026-11-02", "2026-11-03"]
DAILY = dg.DailyPartitionsDefinition(DAYS[0], end_date="2026-11-04")


@dataclass
class Recipe:
    """A function of partitions, and what its steps did when they ran."""

    edges: list[set[int]]
    """For each step, the steps that it reads."""
    dated: set[int]
    """Steps that have the day among their attributes."""
    resuming: set[int]
    """Steps that also read themselves of the day before."""
    version: int = 0
    """An attribute of the first step of each day; all days change with it."""
    broken: set[tuple[str, int]] = field(default_factory=set)
    """Steps that fail, by day and number."""
    prefix: str = ""
    ran: list[str] = field(default_factory=list)
    """Names with hash of the steps that ran."""

    def steps_for(self, day: str) -> list[StepSpec]:
        before: list[StepSpec] = []
        for one in DAYS[: DAYS.index(day) + 1]:
            before = self._steps_of(one, before)
        return before

    def _steps_of(self, day: str, before: list[StepSpec]) -> list[StepSpec]:
        made: list[StepSpec] = []
        for number, edges in enumerate(self.edges):
            deps = [made[dep] for dep in sorted(edges)]
            if number in self.resuming and before:
                deps.append(before[number])
            attrs: dict[str, Any] = {"day": day} if number in self.dated else {}
            if number == 0:
                attrs["version"] = self.version
            made.append(self._step(number, day, deps, attrs))
        return made

    def _step(
        self, number: int, day: str, deps: list[StepSpec], attrs: Mapping[str, Any]
    ) -> StepSpec:
        def build(output_path: str) -> None:
            self.ran.append(Path(output_path).name)
            if number in self.dated and (day, number) in self.broken:
                raise RuntimeError("fails on purpose")

        return StepSpec(
            f"s{number}", output_path_prefix=self.prefix, deps=deps, hash_attrs=attrs, fn=build
        )

    def take(self) -> list[str]:
        ran, self.ran = self.ran, []
        return sorted(ran)


class OfAPartition(DagsterMarinTranslator):
    """Names the assets of a fresh graph after the partitions to which their steps belong."""

    def __init__(self, names: Mapping[str, dg.AssetKey]) -> None:
        self._names = names

    def get_asset_key(self, step: StepLike) -> dg.AssetKey:
        return self._names[step.output_path]


def own_keys(partitioned: PartitionedSteps) -> dict[str, dg.AssetKey]:
    """The asset key of each output path in fresh graphs: the day and the name, or, of a step that
    all partitions share, the name."""
    return {
        step.output_path: dg.AssetKey([name] if name in partitioned.shared else [day, name])
        for day in DAYS
        for name, step in partitioned.at(day).steps.items()
    }


def decisions(run: Run, names: Mapping[str, str]) -> dict[str, str]:
    """What a run did with each asset, by the names that both sides share."""
    found: dict[str, str] = {}
    for kind in ("STEP_SKIPPED", "STEP_FAILURE", "ASSET_MATERIALIZATION", "ASSET_OBSERVATION"):
        for event in run.of_type(kind):
            assert event.step_key is not None
            found[names[event.step_key]] = kind
    return found


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    size = draw(st.integers(2, 4))
    edges = [
        draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        for number in range(size)
    ]
    dated = draw(st.sets(st.integers(0, size - 1), min_size=1))
    resuming = draw(st.sets(st.sampled_from(sorted(dated)), max_size=1))
    return Recipe(edges, dated, resuming)


moves = st.lists(
    st.tuples(
        st.sampled_from(DAYS),
        st.sampled_from(["whole", "part", "edit", "break"]),
        st.integers(1, 15),
    ),
    min_size=2,
    max_size=5,
)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(recipe=recipes(), history=moves)
def test_a_partition_is_decided_as_a_graph_of_its_own(
    recipe: Recipe,
    history: list[tuple[str, str, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    stores = tmp_path_factory.mktemp("stores")
    ours = Recipe(recipe.edges, recipe.dated, recipe.resuming, prefix=str(stores / "ours"))
    fresh = Recipe(recipe.edges, recipe.dated, recipe.resuming, prefix=str(stores / "fresh"))
    names = [f"s{number}" for number in range(len(recipe.edges))]
    with memory_instance() as of_partitions, memory_instance() as of_graphs:
        for day, kind, chosen in history:
            for side in (ours, fresh):
                side.version += kind == "edit"
                side.broken = {(day, chosen % len(names))} if kind == "break" else set()
            selected = [
                name for at, name in enumerate(names) if kind != "part" or chosen >> at & 1
            ] or names
            partitioned = PartitionedSteps.from_function(fresh.steps_for, DAYS)
            keys = own_keys(partitioned)
            definitions = build_definitions(ours.steps_for, partitions_def=DAILY)
            graph = build_definitions(fresh.steps_for(day), translator=OfAPartition(keys))
            own = partitioned.at(day).steps
            key_of = {name: keys[own[name].output_path].to_user_string() for name in names}

            run = run_job(definitions, of_partitions, select=selected, partition=day)
            other = run_job(graph, of_graphs, select=[key_of[name] for name in selected])

            expected = StepGraph.from_steps(fresh.steps_for(day)).steps
            found = PartitionedSteps.from_function(ours.steps_for, DAYS).at(day).graph.steps
            assert [Path(path).name for path in found] == [Path(path).name for path in expected]
            assert ours.take() == fresh.take()
            assert run.success == other.success
            step_keys = {key.replace("/", "__").replace("-", "_"): n for n, key in key_of.items()}
            assert decisions(run, {name: name for name in names}) == decisions(other, step_keys)
            for name in names:
                for one in DAYS:
                    path = partitioned.at(one).steps[name].output_path
                    partition = None if name in partitioned.shared else one
                    status = stale_status(definitions, of_partitions, name, partition)
                    of_graph = build_definitions(
                        fresh.steps_for(one), translator=OfAPartition(keys)
                    )
                    assert status == stale_status(
                        of_graph, of_graphs, keys[path].to_user_string()
                    ), (name, one)
