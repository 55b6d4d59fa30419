"""A code location with a sweep whose points are partitions; a file makes one of them fail."""

import os
from functools import partial
from pathlib import Path

import dagster as dg

from marin_dagster import StepSpec, build_definitions

POINTS = [f"lr-{number:03}" for number in range(int(os.environ.get("SWEEP_POINTS", "4")))]
BROKEN = Path(os.environ["SWEEP_BROKEN"])
"""While this file exists, the point that it names fails."""


def train(output_path: str, point: str) -> dict[str, float]:
    """Trains a model with a learning rate."""
    if BROKEN.exists() and BROKEN.read_text() == point:
        raise RuntimeError(f"{point} fails on purpose")
    return {"loss": 1.0 / (1 + POINTS.index(point))}


def steps_for(point: str) -> list[StepSpec]:
    """The steps of a point."""
    return [StepSpec("train", hash_attrs={"point": point}, fn=partial(train, point=point))]


defs = build_definitions(steps_for, partitions_def=dg.StaticPartitionsDefinition(POINTS))
