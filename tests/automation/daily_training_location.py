"""A code location with a daily training, each step of which notes every unit of work that it does.

A file ``<day>.spot`` in the folder of the notes puts the day's training on a machine that will be
evicted, and ``<day>.broken`` makes it fail.
"""

import os
import time
from functools import partial
from pathlib import Path

import dagster as dg

from marin_dagster import ResourceConfig, StepSpec, build_definitions

NOTES = Path(os.environ["TRAINING_NOTES"])
UNITS = {"prep": 4, "train": 38, "evaluate": 3}
EVICTED_AT = 35
"""Units after which a training is interrupted."""


def work(output_path: str, name: str, day: str) -> None:
    """Do the units of a step."""
    for unit in range(1, UNITS[name] + 1):
        with NOTES.joinpath(day).open("a") as notes:
            notes.write(f"{name}\n")
        if name == "train" and unit == EVICTED_AT:
            interrupt(day)
    Path(output_path, "data.txt").write_text(f"{name} of {day}")


def interrupt(day: str) -> None:
    """Fail, or wait for the eviction of the machine, if that is the day's fate."""
    if NOTES.joinpath(f"{day}.broken").exists():
        raise RuntimeError(f"the training of {day} fails on purpose")
    if NOTES.joinpath(f"{day}.spot").exists():
        waiting = NOTES / f"{day}.pid.part"
        waiting.write_text(str(os.getpid()))
        waiting.rename(NOTES / f"{day}.pid")
        while True:
            time.sleep(60)


def steps_for(day: str) -> list[StepSpec]:
    """The steps of a day."""
    prep = StepSpec("prep", hash_attrs={"day": day}, fn=partial(work, name="prep", day=day))
    train = StepSpec(
        "train",
        deps=[prep],
        fn=partial(work, name="train", day=day),
        resources=ResourceConfig(ram="256m"),
    )
    return [StepSpec("evaluate", deps=[train], fn=partial(work, name="evaluate", day=day))]


defs = build_definitions(
    steps_for,
    partitions_def=dg.DailyPartitionsDefinition("2025-03-03"),
    schedule="0 6 * * *",
    retry_policy=dg.RetryPolicy(max_retries=1),
)
