"""What a tick of a schedule requests, and why not more."""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import dagster as dg

from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.assets.partitions import planned_partitions
from marin_dagster.automation.due_steps import DueSteps
from marin_dagster.cache import CacheState, StepCache
from marin_dagster.cache.plan import (
    CachePlan,
    blocked_message,
    nothing_to_run,
    plan_from_look_ups,
    with_inputs,
)
from marin_dagster.errors import StoreError
from marin_dagster.events.asset_records import AssetPartition, unfinished_runs
from marin_dagster.steps import StepLike
from marin_dagster.steps.protocol import address
from marin_dagster.steps.text import shorten_middle, summarize

_MOST_RUNS = 100
"""Runs that one tick requests."""
_AT_ONCE = 64
"""Partitions whose steps are looked up together."""


@dataclass(frozen=True)
class TickDecision:
    """What a tick does with some due steps."""

    due: DueSteps
    seen: CachePlan
    paths: Sequence[str]
    """Output paths of the steps that a run could finish now."""
    starts: bool
    """Whether such a run would do more than wait."""
    reasons: Sequence[str]
    """Why steps that must run are left out or have to wait."""
    is_partitioned: bool

    @property
    def partition(self) -> str | None:
        """The partition of the run."""
        return self.due.partition

    @property
    def run_key(self) -> str | None:
        """Distinguishes the runs of one tick."""
        return (self.partition or "without partition") if self.is_partitioned else None

    @property
    def request(self) -> Sequence[dg.AssetKey]:
        """The assets that the run selects."""
        return [self.due.assets[path].key for path in self.paths]

    @property
    def lines(self) -> Iterator[tuple[int, str]]:
        """Lines for the tick's log, with their levels."""
        where = f"Partition {self.partition}: " if self.partition else ""
        if self.starts:
            to_run = [address(self.due.graph.steps[path]) for path in self.paths]
            yield logging.INFO, f"{where}{_count(to_run)} must run: {summarize(to_run)}."
        for reason in self.reasons:
            yield logging.WARNING, f"{where}{reason}"


def decide_tick(
    marin: MarinGraph,
    due: Iterable[DueSteps],
    cache: StepCache,
    instance: dg.DagsterInstance | None,
    asking: str,
) -> Sequence[TickDecision]:
    """Look the due steps up and decide what runs; stops after 100 runs.

    Args:
        marin: the graph.
        due: the steps, those of each run together.
        cache: where to look.
        instance: knows unfinished runs; None in a test.
        asking: the schedule, as errors name it.

    Raises:
        StoreError: outputs could not be looked up.
    """
    found: list[TickDecision] = []
    waiting = iter(due)
    while chunk := list(islice(waiting, _AT_ONCE)):
        steps: dict[str, StepLike] = {}
        for one in chunk:
            steps |= with_inputs(one.graph, one.assets)
        looks = cache.look_up_many(steps.values())
        seen = {one: plan_from_look_ups(one.graph, looks, selected=one.assets) for one in chunk}
        for plan in seen.values():
            _check_store(plan, asking)
        to_run = [one.assets[path] for one, plan in seen.items() for path in plan.run.run]
        taken_on = _taken_on(marin, instance, to_run)
        for one, plan in seen.items():
            found.append(_decide(one, plan, taken_on, marin.partitions is not None))
        if sum(decision.starts for decision in found) >= _MOST_RUNS:
            break
    return _limited(found)


def _limited(decisions: Sequence[TickDecision]) -> Sequence[TickDecision]:
    starting = [decision for decision in decisions if decision.starts]
    late = {id(decision) for decision in starting[_MOST_RUNS:]}
    return [decision for decision in decisions if id(decision) not in late]


def skip_text(decisions: Sequence[TickDecision]) -> str:
    """Why a tick requests nothing."""
    texts: dict[str, list[str]] = defaultdict(list)
    for decision in decisions:
        text = "\n".join(decision.reasons) or nothing_to_run(decision.seen)
        texts[text].append(decision.partition or "")
    if not texts:
        return "No partition is due."
    return "\n".join(
        f"{'Partition' if len(keys) == 1 else 'Partitions'} {summarize(keys)}: {text}"
        if any(keys)
        else text
        for text, keys in texts.items()
    )


def _decide(
    due: DueSteps,
    seen: CachePlan,
    runs: Mapping[AssetPartition, dg.DagsterRun],
    is_partitioned: bool,
) -> TickDecision:
    graph = due.graph
    taken_on = {
        path: runs[asset]
        for path, asset in due.assets.items()
        if path in seen.run.run and asset in runs
    }
    stuck = {
        path: blocked_message(graph, path, deps, due.others.__contains__)
        for path, deps in seen.run.blocked.items()
    }
    for path, error in seen.unknown.items():
        stuck[path] = f"step {address(graph.steps[path])}: {error}"
    waiting = seen.below(graph, stuck.keys() | taken_on.keys())
    able = seen.run.run - taken_on.keys() - waiting
    request = [path for path in graph.steps if path in able]
    elsewhere = {
        path: seen.found[path].owner
        for path in request
        if seen.found[path].state is CacheState.RUNNING
    }
    starts = any(
        path not in elsewhere and able.isdisjoint(graph.dependencies(path)) for path in request
    )
    names = {path: address(graph.steps[path]) for path in graph.steps}
    reasons = []
    if stuck:
        reasons.append(f"{_count(stuck)} cannot run: {summarize(stuck.values(), ' ')}")
    by_run: dict[str, list[str]] = defaultdict(list)
    for path, run in taken_on.items():
        by_run[f"Run {run.run_id} ({run.status.value})"].append(names[path])
    if by_run:
        will_build = (
            f"{run_name} will build {summarize(steps)}" for run_name, steps in by_run.items()
        )
        reasons.append(f"{summarize(will_build, '; ')}.")
    if elsewhere:
        builders = [
            f"{names[path]} by {shorten_middle(str(owner))}" for path, owner in elsewhere.items()
        ]
        reasons.append(f"Being built elsewhere: {summarize(builders)}.")
    if not starts:
        waiting |= able - elsewhere.keys()
    if waiting:
        below = [name for path, name in names.items() if path in waiting]
        reasons.append(f"{_count(waiting)} below must wait: {summarize(below)}.")
    return TickDecision(due, seen, request, starts, reasons, is_partitioned)


def _check_store(seen: CachePlan, asking: str) -> None:
    refused = [error for error in seen.unknown.values() if isinstance(error, StoreError)]
    if refused:
        raise StoreError(
            f"{asking}: {len(refused)} of {len(seen.found)} outputs could not be looked up, so "
            f"nothing is launched. The next tick tries again. First error: {refused[0]}"
        ) from refused[0]


def _taken_on(
    marin: MarinGraph, instance: dg.DagsterInstance | None, to_run: Collection[AssetPartition]
) -> Mapping[AssetPartition, dg.DagsterRun]:
    if instance is None:
        return {}
    return unfinished_runs(
        instance, to_run, lambda run: planned_partitions(run, marin.partitions, instance)
    )


def _count(steps: Collection[str]) -> str:
    return f"{len(steps)} step{'s' * (len(steps) != 1)}"
