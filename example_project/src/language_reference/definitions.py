"""What Dagster loads: every step of the graph as an asset, and what keeps them up to date."""

import dagster as dg

from language_reference.steps import build_steps
from marin_dagster import build_definitions

defs = build_definitions(
    build_steps,
    group_name="language_reference",
    schedule="0 6 * * *",
    cache_sensor=True,
    retry_policy=dg.RetryPolicy(max_retries=2, delay=5, backoff=dg.Backoff.EXPONENTIAL),
)
