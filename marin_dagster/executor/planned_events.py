"""If part of a run fails, only failed assets and those downstream are marked failed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import dagster as dg

from marin_dagster._compat import (
    RUNLESS_RUN_ID,
    AssetMaterializationPlannedData,
    PlanExecutionContext,
)
from marin_dagster.events.asset_records import AssetPartition, planned_last


def withdraw_planned_events(
    context: PlanExecutionContext, assets: Mapping[AssetPartition, str]
) -> None:
    """Withdraw this run's plan to materialize these assets.

    Dagster records for every selected asset that a run plans to materialize it, and shows the asset
    as failed if its latest such run fails without materializing it. Dagster has no event for an
    asset that was pruned or served. So this records a newer plan that belongs to no run, and the
    asset keeps the status that it had.

    Args:
        context: of the run.
        assets: the step key of each asset.
    """
    instance, run_id = context.instance, context.run_id
    for asset, step_key in assets.items():
        # Read just before the write: the plan of another run must stay.
        if planned_last(instance, asset) == run_id:
            planned = dg.DagsterEvent.build_asset_materialization_planned_event(
                context.job_name,
                step_key,
                AssetMaterializationPlannedData(asset.key, partition=asset.partition),
            )
            instance.report_dagster_event(planned, run_id=RUNLESS_RUN_ID)


@contextmanager
def withdrawing_on_error(
    context: PlanExecutionContext, assets: Mapping[AssetPartition, str]
) -> Iterator[None]:
    """:func:`withdraw_planned_events` if the body raises: no step ran, so none has failed."""
    try:
        yield
    except Exception:
        withdraw_planned_events(context, assets)
        raise
