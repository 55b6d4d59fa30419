"""Keeps what a failed run left alone from being shown as failed, too."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import dagster as dg

from marin_dagster._compat import (
    RUNLESS_RUN_ID,
    AssetMaterializationPlannedData,
    PlanExecutionContext,
)
from marin_dagster.events.asset_records import last_events


def withdraw_planned_events(
    context: PlanExecutionContext, assets: Mapping[dg.AssetKey, str]
) -> None:
    """Take back that this run was to materialize these assets.

    Dagster writes down for every selected asset that a run plans to materialize it, and calls it
    failed when the run that planned it last has failed without. It knows no way to say that an
    asset was not needed or is served. So a newer plan, of no run, takes this one's place, and the
    asset looks as if nobody had asked for it.

    Args:
        context: of the run.
        assets: the step key of each asset.
    """
    instance, run_id = context.instance, context.run_id
    for key, step_key in assets.items():
        # Just before, for another run may plan it; that plan is not ours to take back.
        entry = last_events(instance, [key]).get(key)
        if entry is not None and entry.run_id == run_id:
            planned = dg.DagsterEvent.build_asset_materialization_planned_event(
                context.job_name, step_key, AssetMaterializationPlannedData(key)
            )
            instance.report_dagster_event(planned, run_id=RUNLESS_RUN_ID)


@contextmanager
def withdrawing_on_error(
    context: PlanExecutionContext, assets: Mapping[dg.AssetKey, str]
) -> Iterator[None]:
    """:func:`withdraw_plans` when the body raises: nothing was tried, so nothing has failed."""
    try:
        yield
    except Exception:
        withdraw_planned_events(context, assets)
        raise
