"""What a Dagster instance knows of assets, asked in portions that any database takes."""

from collections.abc import Sequence

import dagster as dg

from marin_dagster._compat import AssetEntry

DATA_VERSION_TAG = "dagster/data_version"

_RECORDS_AT_ONCE = 500


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
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]
) -> dict[dg.AssetKey, dg.DagsterRun]:
    """For each asset, the latest run that is to make it, unless that run has ended.

    These are the runs by which Dagster's ``AutomationCondition.in_progress()`` calls an asset in
    progress: whoever launched them, queued or running.
    """
    latest = {
        key: entry.last_run_id
        for key, entry in asset_entries(instance, keys).items()
        if entry.last_run_id
    }
    run_ids = sorted(set(latest.values()))
    runs = {
        run.run_id: run
        for start in range(0, len(run_ids), _RECORDS_AT_ONCE)
        for run in instance.get_runs(
            dg.RunsFilter(run_ids=run_ids[start : start + _RECORDS_AT_ONCE])
        )
        if not run.is_finished
    }
    return {key: runs[run_id] for key, run_id in latest.items() if run_id in runs}
