"""``build_marin_cache_sensor``: reports to Dagster what others did in the store.

Runs of the same instance may build during a tick, so the order of reading matters: first the
instance's records, then the store, then, for the steps that changed, the records again and the runs
in progress. A tick skips steps that such a run has planned or that were recorded meanwhile.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import dagster as dg

from marin_dagster.assets.cache_resource import cache_of
from marin_dagster.assets.marin_graph import DEFAULT_IO_MANAGER_KEY, MarinGraph, Steps
from marin_dagster.assets.partitions import planned_partitions
from marin_dagster.assets.translator import DagsterMarinTranslator
from marin_dagster.automation.store_changes import (
    ChangeKind,
    SensorCursor,
    StoreChange,
    WatchedStep,
    compare,
)
from marin_dagster.automation.watched_steps import WatchedSteps, watched_steps
from marin_dagster.cache import CacheState, LookUp, OutputDir, StepCache
from marin_dagster.cache.parallel import map_parallel
from marin_dagster.cache.status import STATUS_FILE
from marin_dagster.errors import MarinDagsterError
from marin_dagster.events.asset_records import (
    AssetPartition,
    LastEvent,
    last_events,
    last_partition_events,
    last_version,
    planned_by,
)
from marin_dagster.events.found_outputs import found_metadata, found_output
from marin_dagster.events.metadata import cut_off, removed, sendable
from marin_dagster.events.metadata_keys import CACHE, OUTPUT_PATH, OWNER
from marin_dagster.steps import StepLike
from marin_dagster.steps.protocol import address, is_mutable
from marin_dagster.steps.text import summarize

EVENTS_PER_TICK = 150
"""The daemon writes events one by one, about 10 ms each; later ticks report the rest."""

_AT_ONCE = 64
_READING_S = 20.0
"""Seconds after which a tick reads no more records: Dagster gives a sensor 60."""

_INTERVAL_S = 60

_LABELS = {
    ChangeKind.HIT: "new",
    ChangeKind.RUNNING: "being built elsewhere",
    ChangeKind.FAILED: "failed",
    ChangeKind.REMOVED: "removed",
}

_IN_PROGRESS = [
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def build_marin_cache_sensor(
    steps: Steps,
    *,
    name: str = "marin_cache_sensor",
    translator: DagsterMarinTranslator | None = None,
    io_manager_key: str = DEFAULT_IO_MANAGER_KEY,
    minimum_interval_seconds: int = _INTERVAL_S,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """A sensor that reports what others did in the store: builds, work in progress, removals.

    Each tick looks the steps up and writes nothing to the store. It reports

    - as a materialization, once: an output that this instance has not recorded, with its builder
      and the versions that a run records for a hit;
    - as an observation, once for each owner: an output that a worker elsewhere is building;
    - as an observation, once: an output that the instance has recorded and that is gone, or whose
      rebuild failed. (An observation does not change whether Dagster calls an asset stale.)

    A ``dev`` version is reported once for each build that no run of this instance has recorded;
    the time at which its status was written, by the store's clock, identifies a build.

    The sensor skips steps that a run in progress has planned. Steps that cannot be looked up keep
    their state, and the tick's log names them.

    With partitions, a tick checks the steps that all partitions share, those of the newest
    partitions, and those of some others, which take turns: about 1,000 steps in all. A function
    that returns the steps is called again at each tick.

    Args:
        steps: the steps, or a function that returns them, or their graph; for partitions, a
            :meth:`MarinGraph.of <MarinGraph.of>`.
        name: the sensor's name.
        translator: the translator of the assets.
        io_manager_key: resource key of the :class:`MarinIOManager`, whose lease times apply.
        minimum_interval_seconds: time between ticks.
        default_status: whether the sensor is on until somebody turns it off in the UI.

    Raises:
        GraphError: the graph is wrong; see :meth:`StepGraph.from_steps`.
        CollisionError: two steps have one asset key.

    A tick fails with :class:`MarinDagsterError` when no step can be looked up, when the graph of no
    partition can be made, or when the names of the function's steps have changed.
    """
    marin = MarinGraph.of(steps, translator=translator, io_manager_key=io_manager_key)
    resource_key = marin.io_manager_key

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        required_resource_keys={resource_key},
        description="Reports what others built, build and removed in the store of Marin's steps.",
    )
    def cache_sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        cache = cache_of(context.resources, resource_key, f"sensor {name!r}")
        return _tick(context, cache, marin.refreshed())

    return cache_sensor


def _tick(
    context: dg.SensorEvaluationContext, cache: StepCache, marin: MarinGraph
) -> dg.SensorResult:
    instance = context.instance
    before = SensorCursor.parse(context.cursor)
    scope = watched_steps(marin, instance, before.position)
    watched = scope.steps
    _log_refused(context, scope)
    entries = last_partition_events(instance, [item.asset for item in watched])
    running = _runs_in_progress(instance)
    found = cache.look_up_many([item.step for item in watched])
    _log_unknown(context, watched, found)
    built_at = _times(watched, found)
    changes = [
        compare(item, found[path], built_at.get(path), entries.get(item.asset), before)
        for item in watched
        for path in (item.step.output_path,)
    ]
    fresh = [item for item in changes if item.kind is not None]
    left: set[AssetPartition] = set()
    if fresh:
        assets = [item.watched.asset for item in fresh]
        runs = {**running, **_runs_in_progress(instance)}
        for _, planned in planned_by(
            instance,
            runs.values(),
            assets,
            lambda run: planned_partitions(run, marin.partitions, instance),
        ):
            left |= planned
        now = last_partition_events(instance, assets)
        left |= {asset for asset in assets if _seen(now.get(asset)) != _seen(entries.get(asset))}
        if left:
            names = [item.watched.label for item in fresh if item.watched.asset in left]
            context.log.info(f"left to runs of this instance: {summarize(names)}")
        fresh = [item for item in fresh if item.watched.asset not in left]
    reporting = fresh[:EVENTS_PER_TICK]
    others = {key for item in reporting for key, step in item.watched.inputs.items() if not step}
    for key, entry in last_events(instance, list(others)).items():
        entries.setdefault(AssetPartition(key), entry)
    versions = {asset: last_version(entry) for asset, entry in entries.items()}
    events = dict(_events(context, scope, reporting, found, versions))
    put_off = {item.watched.asset for item in fresh} - events.keys()
    after = SensorCursor.after(
        before, changes, events.keys(), scope.unchecked, scope.next_position(put_off)
    )
    return dg.SensorResult(
        asset_events=list(events.values()),
        cursor=after.cursor(),
        skip_reason=dg.SkipReason(_summary(events, changes, scope)),
    )


def _runs_in_progress(instance: dg.DagsterInstance) -> dict[str, dg.DagsterRun]:
    return {run.run_id: run for run in instance.get_runs(dg.RunsFilter(statuses=_IN_PROGRESS))}


def _seen(entry: LastEvent | None) -> tuple[Any, ...] | None:
    # A run that began and ended in between has left its id.
    return (entry.run_id, entry.storage_id) if entry else None


def _log_refused(context: dg.SensorEvaluationContext, scope: WatchedSteps) -> None:
    if scope.refused:
        error = next(iter(scope.refused.values()))
        context.log.warning(
            f"left as they were: partitions {summarize(scope.refused)}. Of the first: {error}"
        )


def _log_unknown(
    context: dg.SensorEvaluationContext, watched: Sequence[WatchedStep], found: Mapping[str, LookUp]
) -> None:
    looks = [(item.label, found[item.step.output_path]) for item in watched]
    unknown = [(name, look) for name, look in looks if look.state is CacheState.UNKNOWN]
    if not unknown:
        return
    error = unknown[0][1].error
    if len(unknown) == len(watched):
        raise MarinDagsterError(
            f"none of the {len(watched)} steps could be looked up, so nothing is reported: {error}"
        ) from error
    names = summarize(name for name, _ in unknown)
    context.log.warning(f"left as they were: {names}. Of the first: {error}")


def _times(
    watched: Sequence[WatchedStep], found: Mapping[str, LookUp]
) -> dict[str, datetime | None]:
    """When each ``dev`` version was finished, which identifies its build."""
    finished = {
        item.step.output_path: item.step
        for item in watched
        if is_mutable(item.step) and found[item.step.output_path].finished
    }
    return map_parallel(lambda step: OutputDir.at(step.output_path).modified(STATUS_FILE), finished)


def _events(
    context: dg.SensorEvaluationContext,
    scope: WatchedSteps,
    changes: Sequence[StoreChange],
    found: Mapping[str, LookUp],
    versions: dict[AssetPartition, str | None],
) -> Iterator[tuple[AssetPartition, dg.AssetMaterialization | dg.AssetObservation]]:
    """The events, dependencies first, until the time for reading records is up."""
    began = time.monotonic()

    def is_built(path: str) -> bool:
        return found[path].state is CacheState.HIT

    for start in range(0, len(changes), _AT_ONCE):
        if time.monotonic() - began > _READING_S:
            return
        some = changes[start : start + _AT_ONCE]
        hits = {
            item.watched.step.output_path: item.watched.step
            for item in some
            if item.kind is ChangeKind.HIT
        }
        metadata = map_parallel(
            lambda step: found_metadata(step, found[step.output_path].drift, context.log), hits
        )
        for item in some:
            asset, step, inputs = item.watched.asset, item.watched.step, item.watched.inputs
            if item.kind is ChangeKind.HIT:
                yield (
                    asset,
                    found_output(
                        asset,
                        step,
                        metadata=metadata[step.output_path],
                        inputs=inputs,
                        found=found,
                        versions={key: _version_of(key, asset, versions) for key in inputs},
                        version=item.version,
                        code_version=item.code_version,
                    ),
                )
                versions[asset] = item.version
            else:
                needed_by = scope.needed_by(item.watched, is_built)
                yield asset, _observation(item, found[step.output_path], needed_by)


def _version_of(
    key: dg.AssetKey, reader: AssetPartition, versions: Mapping[AssetPartition, str | None]
) -> str | None:
    """The last version of an input: of the reader's partition, if it has partitions."""
    of_partition = versions.get(AssetPartition(key, reader.partition))
    return of_partition or versions.get(AssetPartition(key))


def _observation(
    change: StoreChange, look: LookUp, needed_by: StepLike | None
) -> dg.AssetObservation:
    step = change.watched.step
    if change.kind is ChangeKind.FAILED:
        return cut_off(change.watched.asset, step)
    metadata: dict[str, Any] = {
        CACHE: str(change.kind),
        OUTPUT_PATH: dg.MetadataValue.path(step.output_path),
    }
    match change.kind:
        case ChangeKind.RUNNING:
            owner = sendable(look.owner or "unknown")
            metadata[OWNER] = owner
            text = f"It is being built elsewhere, by {owner}."
        case _:
            text = removed(step, needed_by)
    return dg.AssetObservation(
        change.watched.key,
        partition=change.watched.partition,
        description=f"{address(step)}: {text}",
        metadata=metadata,
    )


def _summary(
    events: Collection[AssetPartition], changes: Sequence[StoreChange], scope: WatchedSteps
) -> str:
    steps = len(scope.steps)
    checked = f"{steps:,} step{'s' * (steps != 1)} checked"
    if scope.unchecked:
        later = len({asset.partition for asset in scope.unchecked})
        checked += f" of {len(scope.partitions):,} partitions ({later:,} have their turn later)"
    if not events:
        return f"{checked}: nothing new."
    kinds = Counter(
        _LABELS[item.kind] for item in changes if item.kind and item.watched.asset in events
    )
    put_off = sum(item.kind is not None for item in changes) - len(events)
    rest = f"; {put_off} more on the next ticks" if put_off else ""
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"{checked}: {counts}{rest}."
