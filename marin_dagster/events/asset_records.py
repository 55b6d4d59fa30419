"""What a Dagster instance has recorded about assets, in queries that any database can take."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class LastEvent:
    """What an instance recorded last about one asset."""

    run_id: str | None
    """The run that last planned the asset."""
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


def last_materialization(event: LastEvent | None) -> dg.AssetMaterialization | None:
    """The asset's last materialization, if there is one."""
    return event.materialization if event else None


def last_version(event: LastEvent | None) -> str | None:
    """The data version of the asset's last materialization."""
    latest = last_materialization(event)
    return (latest.tags or {}).get(DATA_VERSION_TAG) if latest else None


def unfinished_runs(
    instance: dg.DagsterInstance, keys: Collection[dg.AssetKey]
) -> dict[dg.AssetKey, dg.DagsterRun]:
    """The newest queued or running run that plans each asset; assets without one are left out."""
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
