"""Jobs of several ranks, on a real Slurm. One node runs them all here."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.cache import result_of
from helpers.processes import is_dead
from helpers.slurm_server import (
    end,
    log_of,
    step_of,
    submit,
)
from helpers.step_functions import wait_for
from marin_dagster.runners import JobState
from marin_dagster.runners.slurm import SlurmRunner


@pytest.mark.parametrize("ranks", [1, 2])
def test_cancel_of_a_job_that_ignores_sigterm(make: Callable[..., SlurmRunner], ranks: int) -> None:
    def build(output_path: str) -> None:
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(output_path, "pid" + os.environ["SLURM_PROCID"]).write_text(str(os.getpid()))
        time.sleep(600)

    step = step_of(build)
    job = submit(make(parameters={"ntasks_per_node": ranks}), step)
    files = [Path(step.output_path, f"pid{rank}") for rank in range(ranks)]
    for file in files:
        wait_for(file)

    job.cancel()

    assert end(job).state is JobState.CANCELLED
    assert all(is_dead(int(file.read_text())) for file in files)


def meet(output_path: str) -> dict[str, Any]:
    """A barrier of two ranks."""
    rank = int(os.environ["SLURM_PROCID"])
    Path(output_path, f"rank{rank}").write_text("here")
    wait_for(Path(output_path, f"rank{1 - rank}"))
    print(f"rank {rank} has met the other")
    return {"rank": rank, "ranks": int(os.environ["SLURM_NTASKS"])}


def test_two_ranks_meet_and_write_one_record(make: Callable[..., SlurmRunner]) -> None:
    step = step_of(meet)
    job = submit(make(parameters={"nodes": 1, "ntasks_per_node": 2}), step)

    assert end(job).state is JobState.SUCCEEDED
    lines = sorted(log_of(job).splitlines())

    assert lines == ["rank 0 has met the other", "rank 1 has met the other"]
    assert result_of(step) == {"rank": 0, "ranks": 2}


def test_a_rank_that_fails_does_not_leave_the_other_waiting(
    make: Callable[..., SlurmRunner],
) -> None:
    def build(output_path: str) -> None:
        if os.environ["SLURM_PROCID"] == "1":
            raise LookupError("rank 1 is not well")
        wait_for(Path(output_path, "never"))

    job = submit(make(parameters={"ntasks_per_node": 2}), step_of(build))

    assert end(job).state is JobState.FAILED
    assert "LookupError: rank 1 is not well" in log_of(job)
