"""What a Dagster instance knows of assets, asked in portions that any database takes."""

from collections.abc import Collection, Sequence

import dagster as dg

from marin_dagster._compat import AssetEntry

DATA_VERSION_TAG = "dagster/data_version"

_RECORDS_AT_ONCE = 500
_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def asset_entries(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]
) -> dict[dg.AssetKey, AssetEntry]:
    """What was recorded last of each asset; nothing for one that the instance never heard of."""
    return {
        record.asset_entry.asset_key: record.asset_entry
        for start in range(0, len(keys), _RECORDS_AT_ONCE)
        for record in instance.get_asset_records(keys[start : start + _RECORDS_AT_ONCE])
    }


def last_materialization(entry: AssetEntry | None) -> dg.AssetMaterialization | None:
    """The asset's last materialization, if there ever was one."""
    latest = entry.last_materialization if entry else None
    return latest.asset_materialization if latest else None


def last_version(entry: AssetEntry | None) -> str | None:
    """The data version of the asset's last materialization."""
    latest = last_materialization(entry)
    return (latest.tags or {}).get(DATA_VERSION_TAG) if latest else None


def unfinished_runs(
    instance: dg.DagsterInstance, keys: Collection[dg.AssetKey]
) -> dict[dg.AssetKey, dg.DagsterRun]:
    """For each asset that an unfinished run is to make, queued or running, the newest such run."""
    found: dict[dg.AssetKey, dg.DagsterRun] = {}
    for run in instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED)):
        for key in planned_assets(instance, run.run_id).intersection(keys):
            found.setdefault(key, run)
    return found


def planned_assets(instance: dg.DagsterInstance, run_id: str) -> set[dg.AssetKey]:
    """The assets that a run has set out to materialize."""
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    planned: set[dg.AssetKey] = set()
    cursor: str | None = None
    more = True
    while more:
        page = instance.get_records_for_run(run_id, cursor=cursor, of_type=kind)
        events = [record.event_log_entry.dagster_event for record in page.records]
        planned |= {event.asset_key for event in events if event and event.asset_key}
        cursor, more = page.cursor, page.has_more
    return planned
