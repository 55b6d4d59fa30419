"""Cancelling a run as a user does: code server, run launcher, and the UI's terminate call."""

import time
from collections.abc import Callable
from pathlib import Path

from helpers.dagster_server import DagsterServer
from helpers.processes import wait_until
from marin_dagster.cache import OutputDir, Status, read_status

LOCATION = Path(__file__).with_name("cancel_location.py")
LOCK = ".executor_status.lock"
PATIENT = [f"patient/{number}" for number in range(3)]


def output(store: Path, step: str) -> Path:
    """The output folder of a step, when it has one."""
    return next(store.glob(f"{step}_????????"), store / "none")


def noted(store: Path, step: str, what: str) -> bool:
    return store.joinpath(f"{output(store, step).name}.{what}").exists()


def test_inline_steps_stop_and_leave_failed_statuses_and_no_lease(
    server: DagsterServer, store: Path, record_property: Callable[[str, object], None]
) -> None:
    run = server.launch("patient_job")
    wait_until(lambda: all(noted(store, step, "started") for step in PATIENT), "the steps to start")
    stdout, stderr = server.logs(run, "patient__0")
    assert "patient says hello\n" in stdout
    assert "patient's thread prints\n" in stdout
    assert "patient logs a line" in stderr
    assert not any(noted(store, step, "stopped") for step in PATIENT)

    asked = time.monotonic()
    server.terminate(run)

    assert server.wait(run) == "CANCELED"
    seconds = round(time.monotonic() - asked, 2)
    record_property("seconds_to_cancel", seconds)
    print(f"CANCELED {seconds} s after the request")
    for step in PATIENT:
        # The function itself was stopped, not only the process under it.
        assert noted(store, step, "stopped")
        folder = output(store, step)
        assert read_status(OutputDir.at(str(folder))) is Status.FAILED
        assert not folder.joinpath(LOCK).exists()
    assert not output(store, "after").exists()


def test_a_step_stuck_in_c_is_abandoned_and_its_lease_runs_out(
    server: DagsterServer, store: Path
) -> None:
    run = server.launch("stuck_job")
    wait_until(lambda: noted(store, "stuck", "started"), "the step to start")

    server.terminate(run)

    assert server.wait(run) == "CANCELED"
    folder = output(store, "stuck")
    assert read_status(OutputDir.at(str(folder))) is Status.RUNNING
    # Nobody gives the lease back for it; it is there, and will run out.
    assert folder.joinpath(LOCK).exists()
