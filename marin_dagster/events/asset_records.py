"""What a Dagster instance has recorded about assets, in queries that any database can take."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import dagster as dg

DATA_VERSION_TAG = "dagster/data_version"

_RECORDS_AT_ONCE = 500
_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


class AssetPartition(NamedTuple):
    """An asset, or one of its partitions."""

    key: dg.AssetKey
    partition: str | None = None
    """The partition's key; None for an asset without partitions."""

    def __str__(self) -> str:
        of = "" if self.partition is None else f" [{self.partition}]"
        return f"{self.key.to_user_string()}{of}"


@dataclass(frozen=True)
class LastEvent:
    """What an instance recorded last about one asset, or one of its partitions."""

    run_id: str | None
    """The run that last planned the asset; of a partition, the run that last materialized it."""
    record: dg.EventLogRecord | None
    """The asset's last materialization."""

    @property
    def storage_id(self) -> int | None:
        """The materialization's position in the event log."""
        return self.record.storage_id if self.record else None

    @property
    def materialization(self) -> dg.AssetMaterialization | None:
        """The materialization itself."""
        return self.record.asset_materialization if self.record else None


def last_events(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]
) -> dict[dg.AssetKey, LastEvent]:
    """What was recorded last about each asset that the instance knows."""
    return {
        entry.asset_key: LastEvent(entry.last_run_id, entry.last_materialization_record)
        for start in range(0, len(keys), _RECORDS_AT_ONCE)
        for found in instance.get_asset_records(keys[start : start + _RECORDS_AT_ONCE])
        for entry in (found.asset_entry,)
    }


def last_partition_events(
    instance: dg.DagsterInstance, assets: Iterable[AssetPartition]
) -> dict[AssetPartition, LastEvent]:
    """What was recorded last about assets and partitions, for those that have a record.

    One query for 500 assets without partitions, and two for 500 partitions of an asset.
    """
    assets = list(assets)
    whole = last_events(instance, [asset.key for asset in assets if asset.partition is None])
    found = {AssetPartition(key): entry for key, entry in whole.items()}
    partitions: dict[dg.AssetKey, list[str]] = defaultdict(list)
    for asset in assets:
        if asset.partition is not None:
            partitions[asset.key].append(asset.partition)
    for key, of_asset in partitions.items():
        for start in range(0, len(of_asset), _RECORDS_AT_ONCE):
            some = of_asset[start : start + _RECORDS_AT_ONCE]
            for record in _last_of_partitions(instance, key, some):
                if record.partition_key is not None:
                    entry = LastEvent(record.run_id, record)
                    found[AssetPartition(key, record.partition_key)] = entry
    return found


def _last_of_partitions(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Sequence[str]
) -> Sequence[dg.EventLogRecord]:
    if len(partitions) == 1:
        only = dg.AssetRecordsFilter(key, asset_partitions=partitions)
        return instance.fetch_materializations(only, limit=1).records
    latest = instance.event_log_storage.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, set(partitions)
    )
    if not latest:
        return ()
    newest = dg.AssetRecordsFilter(key, storage_ids=list(latest.values()))
    return instance.fetch_materializations(newest, limit=len(latest)).records


def planned_last(instance: dg.DagsterInstance, asset: AssetPartition) -> str | None:
    """The run that planned an asset or a partition last; of a partition, only if the run has not
    materialized it."""
    if asset.partition is None:
        entry = last_events(instance, [asset.key]).get(asset.key)
        return entry.run_id if entry else None
    storage = instance.event_log_storage
    attempts = storage.get_latest_asset_partition_materialization_attempts_without_materializations(
        asset.key
    )
    run_id, _ = attempts.get(asset.partition, (None, None))
    return run_id


def last_materialization(event: LastEvent | None) -> dg.AssetMaterialization | None:
    """The asset's last materialization, if there is one."""
    return event.materialization if event else None


def last_version(event: LastEvent | None) -> str | None:
    """The data version of the asset's last materialization."""
    latest = last_materialization(event)
    return (latest.tags or {}).get(DATA_VERSION_TAG) if latest else None


def unfinished_runs(
    instance: dg.DagsterInstance,
    assets: Collection[AssetPartition],
    partitions_of: Callable[[dg.DagsterRun], Iterable[str]] = lambda _: (),
) -> dict[AssetPartition, dg.DagsterRun]:
    """The newest queued or running run that plans each asset or partition; those without one are
    left out.

    Args:
        instance: the instance.
        assets: the assets and partitions.
        partitions_of: the partitions of a run.
    """
    if not assets:
        return {}
    found: dict[AssetPartition, dg.DagsterRun] = {}
    runs = instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED))
    for run, planned in planned_by(instance, runs, assets, partitions_of):
        for asset in planned:
            found.setdefault(asset, run)
    return found


def planned_by(
    instance: dg.DagsterInstance,
    runs: Iterable[dg.DagsterRun],
    assets: Collection[AssetPartition],
    partitions_of: Callable[[dg.DagsterRun], Iterable[str]],
) -> Iterator[tuple[dg.DagsterRun, frozenset[AssetPartition]]]:
    """Which of these assets and partitions each run plans to materialize.

    Args:
        instance: the instance.
        runs: the runs.
        assets: the assets and partitions.
        partitions_of: the partitions of a run.
    """
    wanted = frozenset(assets)
    for run, planned in _planned_assets(instance, runs, {asset.key for asset in wanted}):
        partitions = (None, *partitions_of(run))
        yield (
            run,
            wanted.intersection(
                AssetPartition(key, partition) for key in planned for partition in partitions
            ),
        )


def _planned_assets(
    instance: dg.DagsterInstance, runs: Iterable[dg.DagsterRun], keys: Collection[dg.AssetKey]
) -> Iterator[tuple[dg.DagsterRun, frozenset[dg.AssetKey]]]:
    """Which of these assets each run plans to materialize.

    Read from the runs' execution plans. Equal runs share a plan, which is read once; the plan of a
    run that selects none of these assets is not read.
    """
    wanted = frozenset(keys)
    of_plan: dict[str, frozenset[dg.AssetKey]] = {}
    for run in runs:
        plan_id = run.execution_plan_snapshot_id
        if plan_id is None:
            continue
        if run.asset_selection is not None and wanted.isdisjoint(run.asset_selection):
            continue
        if plan_id not in of_plan:
            plan = instance.get_execution_plan_snapshot(plan_id)
            of_plan[plan_id] = wanted & plan.asset_selection
        yield run, of_plan[plan_id]
