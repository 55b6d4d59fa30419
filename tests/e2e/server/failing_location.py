"""A code location of which the whole fails in part, and another job builds a part that does not."""

import dagster as dg

from marin_dagster import StepSpec, build_definitions, marin_executor


def fail(output_path: str) -> None:
    """Fails."""
    raise RuntimeError("fails on purpose")


RAW = StepSpec("raw", fn=print)
READY = StepSpec("ready", deps=[RAW], fn=print)
BROKEN = StepSpec("broken", deps=[READY], fn=fail)
BELOW = StepSpec("below", deps=[BROKEN], fn=print)

defs = dg.Definitions.merge(
    build_definitions([BELOW], job_name="everything"),
    dg.Definitions(
        jobs=[dg.define_asset_job("part", selection="+ready", executor_def=marin_executor)]
    ),
)
