"""A code location whose steps log in every way; one of them waits for the test."""

import logging
import os
import sys
import threading
import time
from pathlib import Path

import dagster as dg

from marin_dagster import StepSpec, build_definitions

together = threading.Barrier(2)


def talk(output_path: str) -> None:
    """One line to stdout, one to stderr and one through logging, while the other does so, too."""
    me = Path(output_path).name.rsplit("_", 1)[0]
    together.wait(60)
    print(f"{me} prints a line")
    print(f"{me} complains", file=sys.stderr)
    logging.getLogger("talk").warning("%s logs a line", me)
    together.wait(60)


def dawdle(output_path: str) -> None:
    """Prints a first line and, once the test has written a file, a last one."""
    print("slow says its first line")
    while not os.path.exists(os.environ["RELEASE_FILE"]):
        time.sleep(0.02)
    print("slow says its last line")


defs = dg.Definitions.merge(
    build_definitions([StepSpec(name, fn=talk) for name in ("left", "right")], job_name="talkers"),
    build_definitions([StepSpec("slow", fn=dawdle)], job_name="dawdler"),
)
