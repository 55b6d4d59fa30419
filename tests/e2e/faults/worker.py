"""A run worker that dies with signal 9 at a chosen point of a step's life.

``python worker.py POINT`` runs the chain prep -> train -> evaluate once; with ``none`` it lives.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import dagster as dg

from helpers.runs import run_job
from marin_dagster import MarinIOManager, StepSpec, build_marin_assets, marin_executor
from marin_dagster.cache import attempt, cache
from marin_dagster.cache.lease import LocalLock
from marin_dagster.cache.status import Status

POINTS = (
    "before RUNNING",
    "in the function",
    "before the record",
    "between record and SUCCESS",
    "before release",
)
VICTIM = "train"


def die(*_: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def arm(point: str) -> None:
    """Make the process die when the step ``train`` reaches ``point``."""
    write_status, write_record = cache.write_status, attempt.write_record
    release = LocalLock.release

    def is_victim(folder: Any) -> bool:
        return f"/{VICTIM}_" in folder.url

    def on_status(folder: Any, status: Status) -> None:
        if is_victim(folder):
            if point == "before RUNNING" and status is Status.RUNNING:
                die()
            if point == "between record and SUCCESS" and status is Status.SUCCESS:
                die()
        write_status(folder, status)

    def on_record(folder: Any, record: Any) -> None:
        if is_victim(folder) and point == "before the record":
            die()
        write_record(folder, record)

    def on_release(lock: LocalLock, worker_id: str) -> None:
        if is_victim(lock.folder) and point == "before release":
            die()
        release(lock, worker_id)

    cache.write_status = attempt.write_status = on_status  # type: ignore[assignment]
    attempt.write_record = on_record
    LocalLock.release = on_release  # type: ignore[method-assign]


def definitions(point: str) -> dg.Definitions:
    calls = Path(os.environ["MARIN_PREFIX"], "calls")

    def step(name: str, *deps: StepSpec) -> StepSpec:
        def build(output_path: str) -> dict[str, str]:
            with calls.open("a") as file:
                file.write(f"{name}\n")
            if name == VICTIM and point == "in the function":
                Path(output_path, "half.txt").write_text("half")
                die()
            Path(output_path, "data.txt").write_text(name)
            return {"made_by": name}

        return StepSpec(name, deps=deps, fn=build)

    prep = step("prep")
    train = step(VICTIM, prep)
    assets = build_marin_assets([step("evaluate", train)])
    return dg.Definitions(
        assets=assets,
        resources={
            "marin_io_manager": MarinIOManager(
                lease_refresh_s=0.2, lease_stale_s=1.0, lease_poll_s=0.05
            )
        },
        jobs=[dg.define_asset_job("materialize_steps", executor_def=marin_executor)],
    )


if __name__ == "__main__":
    chosen = sys.argv[1]
    if chosen != "none":
        arm(chosen)
    with dg.DagsterInstance.get() as instance:
        run = run_job(definitions(chosen), instance)
    sys.exit(0 if run.success else 1)
