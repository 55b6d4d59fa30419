"""``plan_run``: what must run, against a brute-force re-statement of Marin's pruning."""

from collections import Counter
from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from helpers.marin_like import PATIENT
from marin_dagster.steps import RunPlan, StepGraph, StepSpec, plan_run


def step(name: str, *deps: StepSpec) -> StepSpec:
    return StepSpec(name, override_output_path=f"/{name}", deps=deps, fn=print)


def plan(
    *terminals: StepSpec,
    built: str = "",
    selected: str | None = None,
    required: str = "",
    forced: str = "",
) -> RunPlan:
    """A plan where every output is named by one letter."""

    def paths(letters: str) -> list[str]:
        return [f"/{letter}" for letter in letters]

    return plan_run(
        StepGraph.from_steps(terminals),
        is_built=paths(built).__contains__,
        selected=None if selected is None else paths(selected),
        required=paths(required),
        forced=paths(forced),
    )


def letters(paths: Collection[str]) -> str:
    return "".join(sorted(path[1:] for path in paths))


def chain() -> StepSpec:
    """d(ownload) -> n(ormalize) -> t(okenize)."""
    return step("t", step("n", step("d")))


def diamond() -> StepSpec:
    """a -> b and c -> d."""
    a = step("a")
    return step("d", step("b", a), step("c", a))


def test_nothing_of_a_chain_runs_when_only_its_last_step_is_built() -> None:
    found = plan(chain(), built="t")
    assert (letters(found.run), letters(found.hits), letters(found.pruned)) == ("", "t", "dn")
    assert not found.blocked


def test_a_dependency_shared_by_a_cached_and_an_uncached_branch_runs() -> None:
    found = plan(diamond(), built="b")
    assert (letters(found.run), letters(found.hits), letters(found.pruned)) == ("acd", "b", "")


def test_a_dependency_of_cached_branches_only_is_pruned() -> None:
    found = plan(diamond(), built="bc")
    assert (letters(found.run), letters(found.hits), letters(found.pruned)) == ("d", "bc", "a")


def test_everything_runs_when_nothing_is_built() -> None:
    assert letters(plan(diamond()).run) == "abcd"


def test_nothing_runs_when_everything_is_built() -> None:
    found = plan(diamond(), built="abcd")
    assert (letters(found.run), letters(found.hits), letters(found.pruned)) == ("", "abcd", "")


def test_a_step_that_is_required_runs_below_a_cached_one() -> None:
    found = plan(chain(), built="t", required="n")
    assert (letters(found.run), letters(found.pruned)) == ("dn", "")
    assert letters(plan(chain(), built="tn", required="n").run) == ""


def test_a_forced_step_runs_although_it_is_built_and_needs_its_unbuilt_dependencies() -> None:
    found = plan(chain(), built="nt", forced="n")
    assert (letters(found.run), letters(found.hits)) == ("dn", "t")
    found = plan(chain(), built="dnt", forced="t")
    assert (letters(found.run), letters(found.hits)) == ("t", "dn")


def test_forcing_a_step_outside_the_selection_does_nothing() -> None:
    found = plan(chain(), built="dnt", selected="t", forced="d")
    assert (letters(found.run), letters(found.hits)) == ("", "t")


def test_a_step_whose_dependency_is_neither_built_nor_selected_is_blocked() -> None:
    found = plan(diamond(), built="b", selected="d")
    assert found.blocked == {"/d": ("/c",)}
    assert letters(found.run) == ""


def test_an_unselected_dependency_of_many_steps_is_asked_about_once() -> None:
    shared = step("a")
    graph = StepGraph.from_steps([step(name, shared) for name in "bcd"])
    asked: Counter[str] = Counter()

    def is_built(path: str) -> bool:
        asked[path] += 1
        return False

    plan_run(graph, is_built=is_built, selected=["/b", "/c", "/d"])
    assert asked == {"/a": 1, "/b": 1, "/c": 1, "/d": 1}


def test_every_missing_dependency_of_a_blocked_step_is_named() -> None:
    assert plan(diamond(), selected="d").blocked == {"/d": ("/b", "/c")}


def test_a_step_whose_unselected_dependency_is_built_runs() -> None:
    found = plan(chain(), built="n", selected="t")
    assert (letters(found.run), dict(found.blocked)) == ("t", {})


def test_a_built_step_is_not_blocked_by_missing_dependencies() -> None:
    found = plan(chain(), built="t", selected="t")
    assert (letters(found.hits), dict(found.blocked)) == ("t", {})


def test_a_pruned_step_is_not_blocked_by_missing_dependencies() -> None:
    found = plan(chain(), built="t", selected="nt")
    assert (letters(found.pruned), dict(found.blocked)) == ("n", {})


def test_the_ends_of_the_selection_are_needed_though_cached_steps_outside_read_them() -> None:
    found = plan(chain(), built="t", selected="dn")
    assert letters(found.run) == "dn"


def brute_force(
    graph: StepGraph,
    built: Collection[str],
    selected: Collection[str],
    required: Collection[str],
    forced: Collection[str],
) -> RunPlan:
    """Marin's rule as a fixed point over the whole selection, again and again."""

    def is_hit(path: str) -> bool:
        return path in built and path not in forced

    run: set[str] = set()
    while True:
        more = {
            path
            for path in selected
            if not is_hit(path)
            and (
                path in required
                or path in forced
                or not any(path in graph.steps[other].dep_paths for other in selected)
                or any(path in graph.steps[other].dep_paths for other in run)
            )
        }
        if more == run:
            break
        run = more
    blocked = {
        path: missing
        for path in run
        if (
            missing := tuple(
                dep
                for dep in dict.fromkeys(graph.steps[path].dep_paths)
                if dep not in selected and dep not in built
            )
        )
    }
    hits = {path for path in selected if is_hit(path)}
    return RunPlan(
        run=frozenset(run - blocked.keys()),
        hits=frozenset(hits),
        pruned=frozenset(set(selected) - run - hits),
        blocked=blocked,
    )


@PATIENT
@given(data=st.data())
def test_every_plan_of_a_random_graph_is_marins(data: st.DataObject) -> None:
    steps: list[StepSpec] = []
    for index in range(data.draw(st.integers(1, 9))):
        deps = data.draw(st.lists(st.sampled_from(steps), max_size=3)) if steps else []
        steps.append(step(str(index), *deps))
    graph = StepGraph.from_steps(steps)
    subsets = st.sets(st.sampled_from(list(graph.steps)))
    built, selected, required, forced = (data.draw(subsets) for _ in range(4))
    everything = data.draw(st.booleans())
    asked: Counter[str] = Counter()

    def is_built(path: str) -> bool:
        asked[path] += 1
        return path in built

    found = plan_run(
        graph,
        is_built=is_built,
        selected=None if everything else selected,
        required=required,
        forced=forced,
    )
    chosen = set(graph.steps) if everything else selected
    assert found == brute_force(graph, built, chosen, required & chosen, forced & chosen)
    assert max(asked.values(), default=0) <= 1, "an output is asked about at most once"
    assert not asked.keys() & (forced & chosen), "a forced output need not be asked about"
    assert found.run | found.hits | found.pruned | found.blocked.keys() == chosen


def external(name: str, *deps: StepSpec) -> StepSpec:
    """A step that cannot be selected: something else makes its data."""
    return StepSpec(name, override_output_path=f"/{name}", deps=deps)


def test_external_data_in_the_middle_is_no_reason_to_build_what_lies_above_it() -> None:
    found = plan(step("c", external("b", step("a"))), built="b", selected="ac")
    assert (letters(found.run), letters(found.pruned)) == ("c", "a")


def test_a_selected_step_that_only_external_data_reads_is_an_end() -> None:
    found = plan(external("b", step("a")), built="b", selected="a")
    assert letters(found.run) == "a"


def test_a_dev_version_outside_the_selection_can_be_read_once_it_has_an_output() -> None:
    graph = StepGraph.from_steps([step("b", step("a"))])
    found = plan_run(
        graph, is_built=lambda path: False, has_output=lambda path: True, selected=["/b"]
    )
    assert (found.run, dict(found.blocked)) == ({"/b"}, {})
