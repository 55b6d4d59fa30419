"""Decides for each step of a run: prune, serve, block, or run it in a thread."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import dagster as dg

from marin_dagster._compat import ExecutionPlan, PlanExecutionContext
from marin_dagster.assets.cache_resource import cache_of
from marin_dagster.assets.checks import IntegrityOp
from marin_dagster.assets.step_op import StepOp
from marin_dagster.cache import Drift, StepCache
from marin_dagster.cache.cache import CacheState, LookUp
from marin_dagster.cache.plan import plan_from_look_ups
from marin_dagster.cache.preconditions import previous_failure
from marin_dagster.errors import (
    MarinDagsterError,
    ResourceError,
    RoutingError,
)
from marin_dagster.events.asset_records import (
    AssetPartition,
    last_partition_events,
    last_version,
)
from marin_dagster.events.metadata import built_in_s, recorded_version
from marin_dagster.executor.config import ExecutorSettings
from marin_dagster.executor.run_steps import (
    PlannedStep,
    StepNames,
    across_partitions,
    by_graph,
    compute_of,
    dependencies_of_run,
    look_up_graphs,
)
from marin_dagster.executor.stuck_steps import cannot_run, hold_back, unreachable, waits_text
from marin_dagster.runners import INLINE, Placement, Routing
from marin_dagster.steps.protocol import address, is_mutable

BACKFILL_TAG = "dagster/backfill"
"""The tag of a run that a backfill has launched."""

_GRACE_S = 5.0
_REMOTE_GRACE_S = 75.0
"""Longer than a job is given to end on its engine."""


@dataclass(frozen=True)
class Decisions:
    """The run's plan, by step key, or by step key and partition. A step in none of the groups
    runs."""

    planned: Mapping[str, PlannedStep]
    """The steps of this run that are ours."""
    looks: Mapping[str, LookUp]
    """Their state in the store."""
    places: Mapping[str, Placement]
    """Where each step's function runs."""
    checks: frozenset[str]
    """Steps that only check an output."""
    pruned: Mapping[str, str]
    """Not run because nothing needs them, and why."""
    drifted: Mapping[str, Drift]
    """In the cache, but built by another recipe."""
    cached: frozenset[str]
    """In the cache."""
    served: frozenset[str]
    """Cached steps that this instance has recorded: observed without starting the op."""
    saved_s: Mapping[str, float]
    """Seconds that the builds of served steps took, as far as this instance recorded them."""
    blocked: Mapping[str, MarinDagsterError]
    """Steps that cannot run, with an error that explains what to do."""
    unroutable: Mapping[str, Exception]
    """Steps that must run and that no runner takes: the run must not start."""
    unreachable: Mapping[str, tuple[str, ...]]
    """Steps downstream of blocked ones, with the dependencies that they miss."""
    forced: frozenset[str]
    """Built although they are cached."""
    done: frozenset[str]
    """``dev`` versions that an earlier worker of this run has built."""
    expected_hits: frozenset[str]
    """Cached steps whose inputs are pruned: must be served, not built."""

    def check_places(self) -> None:
        """Call this before anything runs: submitted jobs cost money.

        Raises:
            RoutingError: no runner takes some steps that must run.
        """
        if self.unroutable:
            raise RoutingError("\n".join(map(str, self.unroutable.values())))

    @property
    def runs_remotely(self) -> bool:
        """Whether a function will run outside the run worker."""
        return any(self._is_remote(key) for key in self.places if key not in self.cached)

    def _is_remote(self, key: str) -> bool:
        return key in self.places and self.places[key].runner != INLINE

    def grace_s(self, key: str) -> float:
        """Seconds that a step has to stop after an interrupt."""
        return _REMOTE_GRACE_S if self._is_remote(key) else _GRACE_S

    def keep(self, plan: ExecutionPlan) -> list[str]:
        """Keys of the steps that threads run, in the plan's order."""
        dropped = self._dropped
        return [key for key in plan.step_keys_to_execute if key not in dropped]

    def may_build(self) -> list[AssetPartition]:
        """Assets and partitions of our steps that threads run."""
        dropped = self._dropped
        return [found.asset for key, found in self.planned.items() if key not in dropped]

    @property
    def left_alone(self) -> Mapping[AssetPartition, str]:
        """The step key of each asset and partition that is only observed, or not needed."""
        alone = self.served.union(self.pruned)
        others = {found.asset for key, found in self.planned.items() if key not in alone}
        found = (self.planned[key] for key in self.planned if key in alone)
        return {one.asset: one.step_key for one in found if one.asset not in others}

    @property
    def _dropped(self) -> set[str]:
        return {*self.pruned, *self.served, *self.blocked, *self.unreachable, *self.done}


def decide(
    context: PlanExecutionContext,
    plan: ExecutionPlan,
    planned: Mapping[str, PlannedStep],
    settings: ExecutorSettings,
    routing: Routing,
    wanted: frozenset[str] = frozenset(),
    built: frozenset[str] = frozenset(),
) -> Decisions:
    """Look up all steps at once and decide what to do with each. Writes nothing.

    Raises:
        StepError: ``force`` or ``steps`` names a step that this run does not have.
    """
    executable = dependencies_of_run(plan, planned)
    names = StepNames(context, planned)
    forced = names.forced(settings.force)
    mutable = {key for key, found in planned.items() if is_mutable(found.step)}
    before = _finished_before(context) if forced or mutable else set()
    done = {key for key, found in planned.items() if found.step_key in before}
    done |= {key for key in mutable if planned[key].step.output_path in built}
    forced -= done
    overrides = names.overrides(routing.config.steps)
    checks = _checks(context, plan, planned)
    required = _read_by_ordinary_steps(executable, planned, checks) | wanted
    # A backfill waits for a materialization of each of its assets; an observation or a skipped
    # step would keep it, and everything downstream, waiting.
    is_backfill = BACKFILL_TAG in context.dagster_run.tags
    if is_backfill:
        required |= {found.step.output_path for found in planned.values()}
    return decide_steps(
        planned,
        executable,
        cache_for=lambda key_of: _cache(context, planned, key_of),
        # An observation would not do for a backfill.
        instance=None if is_backfill else context.instance,
        place=lambda key, found: routing.place(
            found.step, tag=found.runner, override=overrides.get(key)
        ),
        # A failure in this run, before a retry, is not a failure of an earlier run.
        builds_failed=lambda key: (
            settings.retry_failed or _attempts(plan, planned[key].step_key) > 0
        ),
        required=required,
        forced=frozenset(forced),
        done=frozenset(done & mutable),
        checks=frozenset(checks),
    )


def decide_steps(
    planned: Mapping[str, PlannedStep],
    executable: Mapping[str, set[str]],
    *,
    cache_for: Callable[[Mapping[str, str]], StepCache],
    instance: dg.DagsterInstance | None,
    place: Callable[[str, PlannedStep], Placement],
    builds_failed: Callable[[str], bool],
    required: Collection[str],
    forced: frozenset[str] = frozenset(),
    done: frozenset[str] = frozenset(),
    checks: frozenset[str] = frozenset(),
) -> Decisions:
    """Look up steps and decide what to do with each. Writes nothing.

    Args:
        planned: the steps, by step key.
        executable: for each step key of the run, the step keys that it reads.
        cache_for: the cache of a graph's steps; takes their step keys by output path.
        instance: knows which outputs it has recorded; None for none.
        place: where a step runs; raises RoutingError or ResourceError if nowhere.
        builds_failed: whether a step is built although its last attempt failed.
        required: output paths that are needed whatever reads them.
        forced: steps that are built although they are cached.
        done: steps that are not built again.
        checks: steps that only check an output.
    """
    looks: dict[str, LookUp] = {}
    to_run: list[str] = []
    pruned: dict[str, str] = {}
    hits: dict[str, PlannedStep] = {}
    blocked: dict[str, MarinDagsterError] = {}
    expected: set[str] = set()
    waiting: set[str] = set()
    graphs = by_graph(planned)
    found = look_up_graphs(graphs, cache_for)
    coming, read = across_partitions(planned, graphs, found, forced)
    for graph, key_of in graphs:
        seen = plan_from_look_ups(
            graph,
            found,
            selected=key_of.keys(),
            required=key_of.keys() & read.union(required),
            forced=[path for path, key in key_of.items() if key in forced],
            coming=coming,
        )
        run, unknown = seen.run, seen.unknown
        looks.update((key, seen.found[path]) for path, key in key_of.items())
        for path in unknown.keys() & key_of.keys():
            blocked[key_of[path]] = unknown[path]
        for path in run.hits - unknown.keys():
            hits[key_of[path]] = planned[key_of[path]]
            if not run.pruned.isdisjoint(graph.dependencies(path)):
                expected.add(key_of[path])
        for path, key in key_of.items():
            if path not in run.run:
                continue
            if seen.found[path].state is CacheState.FAILED and not builds_failed(key):
                blocked[key] = previous_failure(graph.steps[path])
            else:
                to_run.append(key)
        for path in run.pruned:
            pruned[key_of[path]] = (
                f"{address(graph.steps[path])} is not built and not needed: "
                "every selected step that reads it is in the cache."
            )
        errors, waits = cannot_run(graph, run.blocked, {p: planned[key_of[p]].op for p in key_of})
        blocked.update((key_of[path], error) for path, error in errors.items())
        waiting |= {key_of[path] for path in waits}
    blocked |= hold_back(planned, executable, to_run, waiting)
    pruned.update((key, waits_text(planned[key].step)) for key in waiting)
    places, refused = _places(planned, [*to_run, *hits], place)
    drifted = {key: drift for key in hits if (drift := looks[key].drift) is not None}
    # No runner takes it, so it must not be built.
    expected |= refused.keys()
    versions = {key: recorded_version(hit.step, drifted.get(key)) for key, hit in hits.items()}
    served, saved_s = _known_to_instance(instance, hits, versions) if instance else (set(), {})
    return Decisions(
        planned=planned,
        looks=looks,
        places=places,
        checks=checks,
        drifted=drifted,
        pruned=pruned,
        cached=frozenset(hits),
        served=frozenset(served),
        saved_s=saved_s,
        blocked=blocked,
        unroutable={key: refused[key] for key in to_run if key in refused},
        unreachable=unreachable(executable, blocked, hits),
        forced=forced,
        done=done,
        expected_hits=frozenset(expected),
    )


def _checks(
    context: PlanExecutionContext, plan: ExecutionPlan, planned: Mapping[str, PlannedStep]
) -> set[str]:
    """Steps that only check one of our outputs."""
    ours = {found.step_key for found in planned.values()}
    return {
        step.key
        for step in plan.steps
        if step.key not in ours and isinstance(compute_of(context, step), StepOp | IntegrityOp)
    }


def _read_by_ordinary_steps(
    executable: Mapping[str, set[str]], planned: Mapping[str, PlannedStep], checks: set[str]
) -> set[str]:
    """Output paths that ordinary steps read: these always run. Checks take what is there."""
    return {
        planned[dep].step.output_path
        for key, deps in executable.items()
        if key not in planned and key not in checks
        for dep in deps
        if dep in planned
    }


def _cache(
    context: PlanExecutionContext, planned: Mapping[str, PlannedStep], key_of: Mapping[str, str]
) -> StepCache:
    op = planned[next(iter(key_of.values()))].op
    resources = context.scoped_resources_builder.build({op.io_manager_key})
    return cache_of(resources, op.io_manager_key, f"step {address(op.step)}")


def _places(
    planned: Mapping[str, PlannedStep],
    keys: Iterable[str],
    place: Callable[[str, PlannedStep], Placement],
) -> tuple[dict[str, Placement], dict[str, Exception]]:
    """Where each step runs, and why no runner takes the others."""
    places: dict[str, Placement] = {}
    refused: dict[str, Exception] = {}
    for key in keys:
        try:
            places[key] = place(key, planned[key])
        except (RoutingError, ResourceError) as error:
            refused[key] = error
    return places, refused


def _known_to_instance(
    instance: dg.DagsterInstance, hits: Mapping[str, PlannedStep], versions: Mapping[str, str]
) -> tuple[set[str], dict[str, float]]:
    """Hits whose version is the data version that the instance recorded last, and how many
    seconds their builds took."""
    entries = last_partition_events(instance, [hit.asset for hit in hits.values()])
    known = {
        key for key, hit in hits.items() if last_version(entries.get(hit.asset)) == versions[key]
    }
    seconds = {key: built_in_s(entries.get(hits[key].asset)) for key in known}
    return known, {key: took for key, took in seconds.items() if took is not None}


def _attempts(plan: ExecutionPlan, key: str) -> int:
    """How often this run has tried the step before."""
    return plan.known_state.get_retry_state().get_attempt_count(key)


def _finished_before(context: PlanExecutionContext) -> set[str]:
    """Steps that an earlier worker of this run has finished, when the run is being resumed."""
    entries = context.instance.all_logs(context.run_id, of_type=dg.DagsterEventType.STEP_SUCCESS)
    return {entry.step_key for entry in entries if entry.step_key}
