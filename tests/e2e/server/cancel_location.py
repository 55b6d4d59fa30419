"""A code location whose steps wait to be cancelled."""

import logging
import os
import threading
import time
from pathlib import Path

import dagster as dg

from marin_dagster import StepSpec, build_definitions, marin_executor


def note(name: str, what: str = "started") -> None:
    """Report to the test how far a step's function is."""
    Path(os.environ["MARIN_PREFIX"], f"{name}.{what}").touch()


def patient(output_path: str) -> None:
    """Waits for ever, in Python."""
    print("patient says hello")
    logging.getLogger("patient").warning("patient logs a line")
    thread = threading.Thread(target=print, args=("patient's thread prints",))
    thread.start()
    thread.join()
    note(Path(output_path).name)
    try:
        while True:
            time.sleep(0.01)
    finally:
        note(Path(output_path).name, "stopped")


def stuck(output_path: str) -> None:
    """Waits for ever, in C, where nothing can interrupt it."""
    note(Path(output_path).name)
    time.sleep(3600)


PATIENT = [StepSpec(f"patient/{number}", fn=patient) for number in range(3)]
AFTER = StepSpec("after", deps=PATIENT, fn=print)
STUCK = StepSpec("stuck", fn=stuck)

defs = dg.Definitions.merge(
    build_definitions([AFTER, STUCK], job_name="everything"),
    dg.Definitions(
        jobs=[
            dg.define_asset_job("patient_job", selection="+after", executor_def=marin_executor),
            dg.define_asset_job("stuck_job", selection="stuck", executor_def=marin_executor),
        ]
    ),
)
