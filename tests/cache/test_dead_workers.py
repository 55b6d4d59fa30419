"""Which workers are certainly dead, and that their outputs are taken over at once."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.cache import begin
from helpers.processes import wait_until
from marin_dagster.cache import CacheState, LeaseTiming, StepCache
from marin_dagster.cache.worker_ids import is_certainly_dead, new_worker_id
from marin_dagster.steps import StepSpec

HOLDS = """
import pathlib, signal, sys, time
from marin_dagster.cache import StepCache
from marin_dagster.steps import StepSpec

attempt = StepCache().begin(StepSpec("step", fn=print))
pathlib.Path(sys.argv[1]).write_text(attempt.worker_id)
signal.pause()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Callable[..., tuple[Any, str]]]:
    """Starts another process that builds the step; returns it and its worker id."""
    started: list[Any] = []

    def start(*before: str) -> tuple[Any, str]:
        noted = tmp_path / f"id{len(started)}"
        process = subprocess.Popen([*before, sys.executable, "-c", HOLDS, str(noted)])
        started.append(process)
        wait_until(lambda: noted.exists() and noted.read_text())
        return process, noted.read_text()

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


def test_an_output_of_a_killed_worker_is_taken_over_at_once(holder: Any) -> None:
    process, worker_id = holder()
    step = StepSpec("step", fn=print)
    assert StepCache().look_up(step).owner == worker_id

    process.kill()
    process.wait()

    assert StepCache().look_up(step).state is CacheState.MISS
    waits: list[float] = []
    attempt = begin(step, cache=StepCache(LeaseTiming()), wait=waits.append)
    assert attempt.left_by.worker_id == worker_id
    assert waits == [1.0]  # for the processes that die with it
    attempt.fail()


def test_a_worker_that_is_not_reaped_yet_is_dead(holder: Any) -> None:
    process, worker_id = holder()
    assert not is_certainly_dead(worker_id)
    process.kill()
    wait_until(lambda: is_certainly_dead(worker_id))
    assert process.returncode is None  # nobody has asked for its exit code


def test_a_stopped_worker_lives(holder: Any) -> None:
    process, worker_id = holder()
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: ") T" in Path(f"/proc/{process.pid}/stat").read_text())
    assert not is_certainly_dead(worker_id)
    assert StepCache().look_up(StepSpec("step", fn=print)).state is CacheState.RUNNING


def test_this_process_lives() -> None:
    assert not is_certainly_dead(new_worker_id())


def test_a_forked_child_has_an_id_of_its_own() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_worker_id().encode())
        signal.pause()
    worker_id = os.read(read, 200).decode()
    assert f"-{child}-" in worker_id
    assert not is_certainly_dead(worker_id)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert is_certainly_dead(worker_id)


def _changed(worker_id: str, part: int, value: str) -> str:
    parts = worker_id.rsplit("-", 3)
    parts[part] = value
    return "-".join(parts)


def _start_of(worker_id: str) -> tuple[str, str]:
    machine, _, start = worker_id.rsplit("-", 3)[2].partition(".")
    return machine, start


@pytest.fixture
def gone(holder: Any) -> str:
    """The id of a worker that is dead."""
    process, worker_id = holder()
    process.kill()
    process.wait()
    assert is_certainly_dead(worker_id)
    return str(worker_id)


def test_a_number_that_belongs_to_another_process_by_now(gone: str) -> None:
    machine, start = _start_of(gone)
    assert is_certainly_dead(_changed(gone, 1, str(os.getpid())))
    mine = _start_of(new_worker_id())[1]
    assert mine != start
    assert not is_certainly_dead(
        _changed(_changed(gone, 1, str(os.getpid())), 2, f"{machine}.{mine}")
    )


def test_a_worker_of_another_boot_machine_or_namespace_may_live(gone: str) -> None:
    _, start = _start_of(gone)
    assert not is_certainly_dead(_changed(gone, 2, f"{'0' * 12}.{start}"))


@pytest.mark.parametrize(
    "worker_id",
    ["", "host-12345", "host-999999-9bb5e787", "host_140230", "host--1-000000000000.1-9bb5e787"],
)
def test_ids_of_marin_and_of_others_say_nothing(worker_id: str) -> None:
    assert not is_certainly_dead(worker_id)


def test_another_users_process_that_cannot_be_seen_may_live(
    gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert not is_certainly_dead(gone)  # /proc may hide it


def test_without_proc_ids_name_no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from marin_dagster.cache import worker_ids

    full = new_worker_id()
    monkeypatch.setattr(worker_ids, "_PROC", tmp_path)
    assert new_worker_id().count("-") == full.count("-") - 1
    assert not is_certainly_dead(full)


@pytest.mark.skipif(
    shutil.which("unshare") is None or os.geteuid() != 0, reason="needs unshare, as root"
)
def test_a_dead_worker_in_another_pid_namespace_may_live(holder: Any) -> None:
    process, worker_id = holder("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    process.kill()
    process.wait()
    assert not is_certainly_dead(worker_id)
    assert StepCache().look_up(StepSpec("step", fn=print)).state is CacheState.RUNNING
