"""Another team's code location: a plain asset that depends on a step of the first one."""

from pathlib import Path

import dagster as dg


@dg.asset(deps=["summary"])
def report(context: dg.AssetExecutionContext) -> str:
    """Finds the step's output at the path in its latest materialization."""
    event = context.instance.get_latest_materialization_event(dg.AssetKey("summary"))
    assert event is not None
    assert event.asset_materialization is not None
    path = event.asset_materialization.metadata["marin/output_path"].value
    assert isinstance(path, str)
    return Path(path, "data.txt").read_text()


defs = dg.Definitions(assets=[report], jobs=[dg.define_asset_job("report_job")])
