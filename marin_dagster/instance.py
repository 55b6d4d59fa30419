"""What a Dagster instance knows of assets, asked in portions that any database takes."""

from collections.abc import Iterator, Sequence

import dagster as dg

from marin_dagster._compat import AssetEntry

_RECORDS_AT_ONCE = 500


def asset_entries(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]
) -> Iterator[AssetEntry]:
    """What was recorded last of each asset that the instance has heard of."""
    for start in range(0, len(keys), _RECORDS_AT_ONCE):
        for record in instance.get_asset_records(keys[start : start + _RECORDS_AT_ONCE]):
            yield record.asset_entry


def recorded_versions(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]
) -> dict[dg.AssetKey, str]:
    """Data version of each asset's last materialization; nothing for an asset without one."""
    versions = {}
    for entry in asset_entries(instance, keys):
        latest = entry.last_materialization and entry.last_materialization.asset_materialization
        if latest and (version := (latest.tags or {}).get("dagster/data_version")):
            versions[entry.asset_key] = version
    return versions


def unfinished_runs(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetKey]
) -> dict[dg.AssetKey, dg.DagsterRun]:
    """For each asset, the latest run that is to make it, unless that run has ended.

    These are the runs by which Dagster's ``AutomationCondition.in_progress()`` calls an asset in
    progress: whoever launched them, queued or running.
    """
    latest = {
        entry.asset_key: entry.last_run_id
        for entry in asset_entries(instance, keys)
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
