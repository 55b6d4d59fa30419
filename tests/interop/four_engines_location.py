"""A code location whose steps run on four engines: each writes who it is and what it read."""

import os
import socket
from pathlib import Path
from typing import Any

from marin_dagster import ResourceConfig, StepSpec, build_definitions

SMALL = ResourceConfig(cpu=1, ram="1g")


def report_place(output_path: str, deps: tuple[StepSpec, ...] = ()) -> dict[str, Any]:
    """Copies the lines of the steps above, and adds one."""
    name = Path(output_path).name.partition("_")[0]
    above = [Path(dep.output_path, "places.txt").read_text() for dep in deps]
    Path(output_path, "places.txt").write_text("".join(above) + f"{name}\n")
    print(f"{name} runs on {socket.gethostname()}")
    return {
        "pid": os.getpid(),
        "slurm": "SLURM_JOB_ID" in os.environ,
        "iris": "IRIS_TASK_ID" in os.environ,
    }


def step(name: str, *deps: StepSpec, **fields: Any) -> StepSpec:
    # A closure over the steps above, which travels by value with them.
    return StepSpec(name, deps=deps, fn=lambda path: report_place(path, deps), **fields)


here = step("here")
process = step("process", here, resources=SMALL)
slurm = step("slurm", process, resources=SMALL)
iris = step("iris", slurm, here, resources=ResourceConfig(cpu=1, ram="1g", disk="1g"))

defs = build_definitions([iris])
