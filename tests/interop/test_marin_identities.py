"""Random graphs have the same identities, paths, order and plan in Marin and here."""

import os
import string
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from marin.execution.step_runner import _expand_unseen
from marin.execution.step_spec import StepSpec as MarinStep
from marin_peer import CLASSES, absolute

from marin_dagster import StepGraph, StepSpec
from marin_dagster.errors import CycleError, StepNameError
from marin_dagster.steps import plan_run

pytestmark = pytest.mark.interop

checked = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)


@dataclass(frozen=True)
class Description:
    """A step, before it is made of either class."""

    name: str
    deps: list[int] = field(default_factory=list)
    """Positions of earlier steps, also several times the same."""
    attrs: dict[str, Any] = field(default_factory=dict)
    prefix: str | None = None
    override: str | None = None
    ours: bool = False
    """In a mixed graph: made of our class."""


def make(descriptions: list[Description], pick: Any) -> list[Any]:
    """The steps, each of the class that ``pick`` chooses for its description."""
    steps: list[Any] = []
    for each in descriptions:
        steps.append(
            pick(each)(
                each.name,
                output_path_prefix=each.prefix,
                deps=[steps[index] for index in each.deps],
                hash_attrs=each.attrs,
                override_output_path=each.override,
            )
        )
    return steps


def all_marin(description: Description) -> Any:
    return MarinStep


def all_ours(description: Description) -> Any:
    return StepSpec


def mixed(description: Description) -> Any:
    return StepSpec if description.ours else MarinStep


text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(-0.0)
)
attributes = st.dictionaries(
    st.text(max_size=6),
    st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(max_size=6), inner, max_size=3)
            | st.dictionaries(st.integers(), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)

segments = st.sampled_from(
    ["a", "data-1.5", "é", "x y", "run=3", "a.b", "..", ".", "%20", "~", "A_"]
)
slashes = st.sampled_from(["", "/", "//", "///"])


@st.composite
def relative_paths(draw: st.DrawFn) -> str:
    parts = draw(st.lists(segments, min_size=1, max_size=4))
    separators = draw(st.lists(st.sampled_from(["/", "/", "//"]), min_size=4, max_size=4))
    path = "".join(f"{part}{separator}" for part, separator in zip(parts, separators, strict=False))
    return path.rstrip("/") + draw(slashes)


roots = st.sampled_from(
    [
        *("/", "//", "memory://", "memory:///", "s3://bucket/", "s3://bucket//", "gs://b-1.c/"),
        *("file:///", "mirror://", "hf://datasets/", "https://host:80/"),
    ]
)
absolute_paths = st.builds(lambda root, rest: root + rest, roots, relative_paths())
bare_roots = st.sampled_from(["/", "s3://bucket", "gs://bucket/", "memory://", "memory:///"])
prefixes = absolute_paths | bare_roots | relative_paths()
step_names = (
    st.sampled_from(["tokenize", "raw/data", "a-b", "a_b", "numinamath-1.5", "é/ü", "a//b", "b/"])
    | relative_paths()
    | text
).filter(lambda name: "://" not in name and not name.startswith("/"))


@st.composite
def graphs(draw: st.DrawFn) -> list[Description]:
    """Up to eight steps with any names, attributes, prefixes and overrides."""
    size = draw(st.integers(1, 8))
    return [
        Description(
            name=draw(step_names),
            deps=draw(st.lists(st.integers(0, index - 1), max_size=4)) if index else [],
            attrs=draw(attributes),
            prefix=draw(st.none() | prefixes),
            override=draw(st.none() | relative_paths() | absolute_paths),
            ours=draw(st.booleans()),
        )
        for index in range(size)
    ]


plain_names = st.text(string.ascii_lowercase + "-é", min_size=1, max_size=2)


@st.composite
def plain_graphs(draw: st.DrawFn, max_size: int = 10) -> list[Description]:
    """Steps that a graph accepts; names repeat, so that some steps are one."""
    size = draw(st.integers(1, max_size))
    return [
        Description(
            name=draw(plain_names),
            deps=draw(st.lists(st.integers(0, index - 1), max_size=4)) if index else [],
            attrs=draw(st.dictionaries(plain_names, st.integers(0, 1), max_size=1)),
            prefix=draw(st.sampled_from([None, None, "s3://bucket/a/", "memory://m"])),
            override=draw(st.sampled_from([None, None, None, f"fixed/{index}/"])),
            ours=draw(st.booleans()),
        )
        for index in range(size)
    ]


def with_prefix(value: str) -> Any:
    return mock.patch.dict(os.environ, {"MARIN_PREFIX": value})


def identity(step: Any) -> dict[str, Any]:
    return {
        "hash_id": step.hash_id,
        "name_with_hash": step.name_with_hash,
        "dep_names": list(step.dep_names),
    }


def location(step: Any) -> dict[str, Any]:
    # Only a step's own relative prefix stays relative in Marin; both name one folder.
    return {
        "output_path": absolute(step.output_path),
        "dep_paths": [absolute(path) for path in step.dep_paths],
    }


@checked
# Of a bare "memory:///" in the environment, Marin drops the third slash; both name one folder.
@given(graph=graphs(), environment=prefixes.filter(lambda prefix: prefix != "memory:///"))
@example(graph=[Description("a", prefix="s3://b//x///", override="y//z//")], environment="/store")
@example(graph=[Description("a"), Description("b", deps=[0, 0])], environment="store/")
@example(graph=[Description("a", override="/x/y///")], environment="gs://bucket")
@example(graph=[Description("a", override="s3://b/y/")], environment="/")
@example(graph=[Description("a", override="")], environment="/store//")
@example(graph=[Description("a", override="x:y/z")], environment="/store//")
def test_identities_and_paths_of_random_graphs_are_marins(
    graph: list[Description], environment: str
) -> None:
    with with_prefix(environment):
        expected = make(graph, all_marin)
        for made in (make(graph, all_ours), make(graph, mixed)):
            assert [identity(step) for step in made] == [identity(step) for step in expected]
            assert [location(step) for step in made] == [location(step) for step in expected]


@checked
@given(graph=graphs(), environment=absolute_paths | relative_paths())
def test_paths_are_equal_to_the_character_without_a_relative_prefix_of_the_steps_own(
    graph: list[Description], environment: str
) -> None:
    graph = [
        Description(each.name, each.deps, each.attrs, None, each.override, each.ours)
        for each in graph
    ]
    with with_prefix(environment):
        expected = [step.output_path for step in make(graph, all_marin)]
        assert [step.output_path for step in make(graph, all_ours)] == expected
        assert [step.output_path for step in make(graph, mixed)] == expected


@pytest.mark.parametrize(
    "environment",
    ["./store", "store//deep/", "run:1/store", "../store", "a/../b", "/x/../y/", "s3://b//k/"],
)
def test_a_prefix_from_the_environment_is_made_canonical_as_in_marin(
    environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_PREFIX", environment)
    assert StepSpec("a").output_path == MarinStep("a").output_path


def test_without_any_prefix_outputs_go_where_marins_go(monkeypatch: pytest.MonkeyPatch) -> None:
    # The metadata server that Marin would ask for a region is not there.
    monkeypatch.setattr(
        "rigging.filesystem.cluster_config.region_from_metadata", lambda: None, raising=True
    )
    monkeypatch.delenv("MARIN_PREFIX")
    from marin_dagster.steps import paths

    paths._warn_not_durable.cache_clear()
    with pytest.warns(UserWarning, match="not set"):
        ours = StepSpec("a").output_path
    assert ours == MarinStep("a").output_path


@checked
@given(graph=plain_graphs())
def test_a_graph_of_either_class_or_of_both_has_marins_steps_in_marins_order(
    graph: list[Description],
) -> None:
    with with_prefix("/store"):
        expected: list[str] = []
        seen: set[str] = set()
        for step in make(graph, all_marin):
            expected += [found.output_path for found in _expand_unseen(step, seen)]
        for pick in (all_marin, all_ours, mixed):
            made = make(graph, pick)
            found = StepGraph.from_steps(made)
            assert list(found.steps) == expected
            for step in made:
                assert set(found.dependencies(step.output_path)) == set(step.dep_paths)


@checked
@given(graph=plain_graphs(), data=st.data())
def test_the_plan_runs_exactly_what_marin_would_schedule(
    graph: list[Description], data: st.DataObject
) -> None:
    with with_prefix("/store"):
        steps = make(graph, all_marin)
        paths = sorted({step.output_path for step in steps})
        built = data.draw(st.sets(st.sampled_from(paths)), label="built")
        wanted = data.draw(st.lists(st.sampled_from(steps), min_size=1, max_size=3), label="wanted")
        seen: set[str] = set()
        scheduled: set[str] = set()
        for step in wanted:
            found = _expand_unseen(step, seen, lambda each: each.output_path in built, set())
            scheduled.update(each.output_path for each in found)

        made = make(graph, mixed)
        terminals = [made[steps.index(step)] for step in wanted]
        ours = StepGraph.from_steps(terminals)
        plan = plan_run(ours, is_built=built.__contains__, required=ours.terminals)

        assert plan.run == scheduled - built
        assert plan.hits >= scheduled & built
        assert not plan.blocked


@pytest.mark.parametrize("name", ["/a", "s3://b/a", "a://b"])
def test_names_that_marin_refuses_to_join_are_refused_when_the_graph_is_built(name: str) -> None:
    with pytest.raises(ValueError, match="non-relative"):
        _ = MarinStep(name).output_path
    for make_step in CLASSES:
        with pytest.raises(ValueError, match=r"non-relative|scheme|empty part"):
            StepGraph.from_steps([make_step(name)])
    with pytest.raises(StepNameError):
        StepGraph.from_steps([StepSpec(name)])


def test_a_ring_through_both_classes_is_named_whole() -> None:
    inner: list[Any] = []
    marins = MarinStep("marins", deps=inner)
    ours = StepSpec("ours", deps=[marins])
    inner.append(ours)
    with pytest.raises(CycleError, match=r"ours -> marins -> ours|marins -> ours -> marins"):
        StepGraph.from_steps([ours])


def test_a_chain_of_3000_of_marins_steps_loads_although_marin_recurses() -> None:
    def chain(make_step: Any) -> Any:
        last = make_step("step-0")
        for index in range(1, 3000):
            last = make_step(f"step-{index}", deps=[last])
        return last

    with pytest.raises(RecursionError):
        _ = chain(MarinStep).hash_id
    # A step of ours hashes what is above it, whoever made it.
    above = StepSpec("end", deps=[chain(MarinStep)])
    assert above.hash_id == StepSpec("end", deps=[chain(StepSpec)]).hash_id
    graph = StepGraph.from_steps([chain(MarinStep)])
    assert len(graph.steps) == 3000
    assert list(graph.steps) == list(StepGraph.from_steps([chain(StepSpec)]).steps)
