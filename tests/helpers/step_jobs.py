"""Jobs with the features under test, and readers of the compute logs that they leave."""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from helpers.runs import Run
from marin_dagster import MarinIOManager, build_marin_assets, marin_executor

PATIENCE_S = 60.0
"""How long functions wait for each other before a test gives up."""
CHANCE_S = 0.5
"""How long a correct run is given to do something wrong."""
JOB = "featured"


def job_of(assets: Iterable[Any], **options: Any) -> dg.Definitions:
    """Definitions with the job ``featured``; ``options`` are those of ``define_asset_job``."""
    job = dg.define_asset_job(
        JOB, selection=dg.AssetSelection.all(), executor_def=marin_executor, **options
    )
    return dg.Definitions(
        assets=list(assets), resources={"marin_io_manager": MarinIOManager()}, jobs=[job]
    )


def steps_job(*steps: Any, **options: Any) -> dg.Definitions:
    """The same from steps."""
    return job_of(build_marin_assets(steps), **options)


def with_op(
    asset: dg.AssetsDefinition, *, pool: str | None = None, tags: Mapping[str, Any] | None = None
) -> dg.AssetsDefinition:
    """The asset of one of our steps with its op in a pool, or with more tags on the op."""
    op = asset.op
    return dg.AssetsDefinition(
        keys_by_input_name=asset.keys_by_input_name,
        keys_by_output_name=asset.keys_by_output_name,
        node_def=dg.OpDefinition(
            name=op.name,
            compute_fn=op.compute_fn,
            ins=op.ins,
            outs=op.outs,
            required_resource_keys=set(op.required_resource_keys),
            tags={**op.tags, **(tags or {})},
            pool=pool,
        ),
        specs=list(asset.specs),
    )


def log_of(
    instance: dg.DagsterInstance, run: Run | str, step_key: str, kind: str = "stdout"
) -> str:
    """What a step's compute log holds now; of a log that is not there, nothing."""
    manager = instance.compute_log_manager
    run_id = run if isinstance(run, str) else run.run_id
    data = manager.get_log_data(manager.build_log_key_for_run(run_id, step_key))
    content: bytes | None = getattr(data, kind)
    return (content or b"").decode()
