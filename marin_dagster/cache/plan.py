"""``plan_from_cache``: which steps of a graph must run, by the current state of the store."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from marin_dagster.cache.cache import CacheState, LookUp, StepCache
from marin_dagster.cache.status import STATUS_FILE
from marin_dagster.errors import MarinDagsterError
from marin_dagster.steps import RunPlan, StepGraph, StepLike, plan_run
from marin_dagster.steps.protocol import address, adopted_source, is_external
from marin_dagster.steps.text import summarize


@dataclass(frozen=True)
class CachePlan:
    """The decision about the selected steps, and their look-ups; all by output path."""

    run: RunPlan
    """The decision. It lists steps in an unknown state as hits, so that their inputs do not run."""
    found: Mapping[str, LookUp]
    """Look-ups of the selected steps and their inputs."""
    unknown: Mapping[str, MarinDagsterError]
    """Steps of ``found`` that could not be looked up or cannot be used, with the error."""

    def below(self, graph: StepGraph, paths: Collection[str]) -> frozenset[str]:
        """The steps that must run and that read any of ``paths``, directly or indirectly."""
        lost = set(paths)
        for path in graph.steps:
            if path in self.run.run and not lost.isdisjoint(graph.dependencies(path)):
                lost.add(path)
        return frozenset(lost.difference(paths))


def plan_from_cache(
    cache: StepCache,
    graph: StepGraph,
    *,
    selected: Collection[str],
    required: Collection[str] = (),
) -> CachePlan:
    """Look up the selected steps and their inputs, in parallel, and decide what must run.

    Args:
        cache: where to look.
        graph: the steps.
        selected: output paths to consider.
        required: selected paths that are needed whatever reads them.
    """
    found = cache.look_up_many(with_inputs(graph, selected).values())
    return plan_from_look_ups(graph, found, selected=selected, required=required)


def with_inputs(graph: StepGraph, selected: Iterable[str]) -> dict[str, StepLike]:
    """The steps at these output paths and their inputs: what a decision must know about."""
    steps: dict[str, StepLike] = {}
    for path in selected:
        steps[path] = graph.steps[path]
        steps.update((dep, graph.steps[dep]) for dep in graph.dependencies(path))
    return steps


def plan_from_look_ups(
    graph: StepGraph,
    found: Mapping[str, LookUp],
    *,
    selected: Collection[str],
    required: Collection[str] = (),
    forced: Collection[str] = (),
    coming: Collection[str] = (),
) -> CachePlan:
    """Decide what must run.

    Args:
        graph: the steps.
        found: look-ups of at least :func:`with_inputs`.
        selected: output paths to consider.
        required: selected paths that are needed whatever reads them.
        forced: selected paths that run even when they are built.
        coming: other paths that the run builds, for another partition.
    """
    steps = with_inputs(graph, selected)
    found = {path: found[path] for path in steps}
    unknown = {path: look.error for path, look in found.items() if look.error is not None}
    built = {path for path, look in found.items() if look.state is CacheState.HIT}
    # The first step that reads adopted data registers it.
    finished = {
        path
        for path, look in found.items()
        if look.finished or adopted_source(steps[path]) is not None
    }
    run = plan_run(
        graph,
        is_built=(built | unknown.keys()).__contains__,
        has_output=finished.union(unknown, coming).__contains__,
        selected=selected,
        required=required,
        forced=forced,
    )
    return CachePlan(run, found, unknown)


def blocked_message(
    graph: StepGraph,
    path: str,
    missing: Collection[str],
    is_of_another_partition: Callable[[str], bool] = lambda _: False,
) -> str:
    """Which inputs keep a step from running, and what to do. Names at most 5 of each kind.

    Args:
        graph: the steps.
        path: the blocked step's output path.
        missing: output paths of its inputs that are neither finished nor going to be.
        is_of_another_partition: whether a run of this partition cannot build an output path.
    """
    step = graph.steps[path]
    external = [dep for dep in missing if is_external(graph.steps[dep])]
    elsewhere = [dep for dep in missing if dep not in external and is_of_another_partition(dep)]
    others = [dep for dep in missing if dep not in external and dep not in elsewhere]
    reasons = []
    if elsewhere:
        needs = summarize(f"{graph.steps[dep].name!r} ({dep})" for dep in elsewhere)
        reasons.append(
            f"needs {needs} of another partition, which has no successful output. Build that "
            "partition first."
        )
    if others:
        needs = summarize(f"{graph.steps[dep].name!r} ({dep})" for dep in others)
        reasons.append(
            f"needs {needs}, which has no successful output and is not selected in this run. "
            "Select it, too, or build it first."
        )
    if external:
        needs = summarize(f"{graph.steps[dep].name!r} ({dep})" for dep in external)
        reasons.append(
            f"needs {needs}, which has no successful output and which no run builds. Put its "
            f"data there, with SUCCESS in its {STATUS_FILE}."
        )
    return f"step {address(step)} ({path}) {' It also '.join(reasons)}"


def nothing_to_run(seen: CachePlan) -> str:
    """Why no step runs: how many are cached, and how many nothing needs."""
    hits, pruned = len(seen.run.hits), len(seen.run.pruned)
    if pruned:
        return f"Nothing to run: {hits} steps are cached, and nothing needs the other {pruned}."
    all_steps = f"all {hits} steps are" if hits > 1 else "the only step is"
    return f"Nothing to run: {all_steps} cached."
