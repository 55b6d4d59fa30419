"""Graphs of which nothing must run: a look at the store, without a job or a run of Dagster's."""

import logging
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager

import dagster as dg

from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.cache import DriftLog, StepCache
from marin_dagster.cache.parallel import map_parallel
from marin_dagster.cache.plan import CachePlan, nothing_to_run, plan_from_cache
from marin_dagster.events.asset_records import (
    AssetPartition,
    last_partition_events,
    last_version,
)
from marin_dagster.events.found_outputs import found_metadata, found_output
from marin_dagster.events.metadata import recorded_version
from marin_dagster.step_runner.console import show
from marin_dagster.steps import StepGraph
from marin_dagster.steps.protocol import is_external

logger = logging.getLogger(__name__)


def serve_cached(
    graph: StepGraph,
    drifts: DriftLog,
    recording: AbstractContextManager[dg.DagsterInstance] | None,
) -> bool:
    """Whether all that the graph's terminals need is in the cache; then reports it.

    An instance gets a materialization of each output that it does not know.

    Args:
        graph: the steps.
        drifts: warns of drifted outputs.
        recording: opens the instance that records them; None for none.
    """
    seen = look_up(graph)
    if seen.run.run or seen.run.blocked or seen.unknown:
        return False
    log_cached(graph, seen, drifts)
    if recording is not None and seen.run.hits:
        with recording as instance:
            _report_unknown(instance, graph, seen, MarinGraph.of(graph).keys)
    return True


def log_cached(graph: StepGraph, seen: CachePlan, drifts: DriftLog) -> None:
    """Log that nothing must run, and which outputs have drifted."""
    for path, step in graph.steps.items():
        if path in seen.run.hits and (drift := seen.found[path].drift) is not None:
            drifts.warn(step, drift)
    show(nothing_to_run(seen))


def report_outputs(
    instance: dg.DagsterInstance,
    graph: StepGraph,
    keys: Mapping[str, dg.AssetKey] | None = None,
    paths: Collection[str] | None = None,
) -> None:
    """Record a graph's finished outputs that an instance does not know.

    Args:
        instance: where to record them.
        graph: the steps.
        keys: their asset keys by output path; those of the default translator when None.
        paths: output paths of the steps to record; all when None.
    """
    keys = MarinGraph.of(graph).keys if keys is None else keys
    _report_unknown(instance, graph, look_up(graph, paths), keys)


def report_partitions(
    instance: dg.DagsterInstance,
    graph: StepGraph,
    assets: Mapping[str, AssetPartition],
    code_versions: Mapping[dg.AssetKey, str],
) -> None:
    """Record finished outputs of partitions that an instance does not know.

    Args:
        instance: where to record them.
        graph: the steps of all these partitions.
        assets: the asset, or its partition, of each output path to record.
        code_versions: the code versions of assets with partitions.
    """
    keys = {path: asset.key for path, asset in assets.items()}
    partitions = {path: asset.partition for path, asset in assets.items() if asset.partition}
    seen = look_up(graph, assets)
    _report_unknown(instance, graph, seen, keys, partitions, code_versions)


def look_up(graph: StepGraph, paths: Collection[str] | None = None) -> CachePlan:
    """What a script's run of a graph, or of some of its steps, would do."""
    steps = graph.steps
    selected = [path for path in paths or steps if not is_external(steps[path])]
    wanted = [path for path in graph.terminals if path in set(selected)]
    return plan_from_cache(StepCache(), graph, selected=selected, required=wanted)


def _report_unknown(
    instance: dg.DagsterInstance,
    graph: StepGraph,
    seen: CachePlan,
    key_at: Mapping[str, dg.AssetKey],
    partitions: Mapping[str, str] | None = None,
    code_versions: Mapping[dg.AssetKey, str] | None = None,
) -> None:
    """Record the outputs whose versions are not the last that the instance recorded."""
    of, codes = partitions or {}, code_versions or {}

    def asset_at(path: str) -> AssetPartition:
        return AssetPartition(key_at[path], of.get(path))

    hits = [path for path in graph.steps if path in seen.run.hits]
    inputs = {
        path: {
            asset_at(dep.output_path): dep
            for dep in graph.steps[path].deps
            if dep.output_path in key_at
        }
        for path in hits
    }
    others = {dep for read in inputs.values() for dep in read}
    entries = last_partition_events(instance, {*map(asset_at, hits), *others})
    versions = {asset: last_version(entry) for asset, entry in entries.items()}
    unknown = {
        path: graph.steps[path]
        for path in hits
        if versions.get(asset_at(path))
        != recorded_version(graph.steps[path], seen.found[path].drift)
    }
    metadata = map_parallel(
        lambda step: found_metadata(step, seen.found[step.output_path].drift, logger), unknown
    )
    for path, step in unknown.items():
        asset = asset_at(path)
        event = found_output(
            asset,
            step,
            metadata=metadata[path],
            inputs={asset.key: dep for asset, dep in inputs[path].items()},
            found=seen.found,
            versions={asset.key: versions.get(asset) for asset in inputs[path]},
            code_version=codes.get(asset.key) if asset.partition else None,
        )
        instance.report_runless_asset_event(event)
