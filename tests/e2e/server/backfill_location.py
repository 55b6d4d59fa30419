"""A code location with a daily asset below two steps, for backfills."""

from pathlib import Path

import dagster as dg

from marin_dagster import StepSpec, build_definitions, marin_executor

DAYS = ["2026-01-01", "2026-01-02"]


def write(output_path: str) -> None:
    Path(output_path, "data.txt").write_text("data")


raw = StepSpec("raw", fn=write)
corpus = StepSpec("corpus", deps=[raw], fn=write)


@dg.asset(
    deps=["corpus"],
    partitions_def=dg.DailyPartitionsDefinition(DAYS[0], end_date="2026-01-03"),
)
def counted() -> None:
    """What each day counts in the corpus."""


defs = dg.Definitions.merge(
    build_definitions([corpus]), dg.Definitions(assets=[counted], executor=marin_executor)
)
