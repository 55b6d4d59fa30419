"""What a Dagster instance knows of assets, asked in portions that any database takes."""

from collections.abc import Collection, Iterable, Iterator, Sequence

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
    if not keys:
        return {}
    found: dict[dg.AssetKey, dg.DagsterRun] = {}
    runs = instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED))
    for run, planned in planned_assets(instance, runs, keys):
        for key in planned:
            found.setdefault(key, run)
    return found


def planned_assets(
    instance: dg.DagsterInstance, runs: Iterable[dg.DagsterRun], keys: Collection[dg.AssetKey]
) -> Iterator[tuple[dg.DagsterRun, frozenset[dg.AssetKey]]]:
    """Which of these assets each run has set out to materialize.

    Read from the runs' execution plans, which equal runs share: however many runs of a job wait,
    their plan is read once, and that of a run which selects other assets is not read.
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
