"""Several processes at one lock: exactly one winner, and the lock of a killed one is taken over."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.cache import GUARD_S, LOCK, STATUS, begin, get, lease, make, python
from marin_dagster.cache import CacheState, LeaseTiming, OutputDir, StepCache

pytestmark = pytest.mark.slow

RACER = """
import sys
from marin_dagster.cache import OutputDir, LeaseTiming
from marin_dagster.cache.lease import LeaseWatch
from marin_dagster.cache.worker_ids import new_worker_id
from marin_dagster.cache.locks import lock_for

timing = LeaseTiming()
print("ready", flush=True)
for line in sys.stdin:
    worker_id = new_worker_id()
    lock = lock_for(OutputDir.at(line.strip()), timing)
    lock.read()
    print("at the start", flush=True)
    sys.stdin.readline()
    print("won" if lock.acquire(worker_id, LeaseWatch(timing)) else "lost", flush=True)
    sys.stdin.readline()
    lock.release(worker_id)
    print("released", flush=True)
"""


class Racer:
    """A process at the other end of two pipes."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RACER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, text: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


@contextmanager
def racers(count: int) -> Iterator[list[Racer]]:
    processes = [Racer() for _ in range(count)]
    try:
        assert [racer.hear() for racer in processes] == ["ready"] * count
        yield processes
    finally:
        for racer in processes:
            racer.process.kill()
            racer.process.communicate()


def race(competitors: list[Racer], folder: str, *, stale: bool = False) -> list[str]:
    """One race for one lock; what each competitor reports, and the lock is given back."""
    if stale:
        OutputDir.at(folder).write(LOCK, lease(age_s=91).encode())
    for racer in competitors:
        racer.send(folder)
    assert {racer.hear() for racer in competitors} == {"at the start"}
    for racer in competitors:
        racer.send("go")
    results = [racer.hear() for racer in competitors]
    for racer in competitors:
        racer.send("give back")
    assert {racer.hear() for racer in competitors} == {"released"}
    return results


def test_of_two_processes_exactly_one_wins_each_of_200_races(tmp_path: Path) -> None:
    with racers(2) as both:
        for number in range(200):
            competitors = both if number % 2 else both[::-1]
            folder = tmp_path / str(number // 4)
            results = race(competitors, str(folder), stale=number % 4 > 1)
            assert sorted(results) == ["lost", "won"]
            assert not list(folder.iterdir()), "nothing stays locked, and nothing is left"


def test_of_three_processes_exactly_one_wins_each_race_in_a_bucket(s3_prefix: str) -> None:
    with racers(3) as competitors:
        for number in range(12):
            results = race(competitors, f"{s3_prefix}/{number // 4}", stale=number % 4 > 1)
            assert sorted(results) == ["lost", "lost", "won"]


CROWD = """
import os, sys
from marin_dagster.cache import OutputDir, LeaseTiming
from marin_dagster.cache.lease import LeaseWatch, LocalLock
from marin_dagster.cache.worker_ids import new_worker_id

folder, rounds = sys.argv[1], int(sys.argv[2])
lock, timing = LocalLock(OutputDir.at(folder)), LeaseTiming()
sentinel = os.path.join(folder, "inside")
print("ready", flush=True)
sys.stdin.readline()
for _ in range(rounds):
    worker_id = new_worker_id()
    while not lock.acquire(worker_id, LeaseWatch(timing)):
        pass
    os.close(os.open(sentinel, os.O_CREAT | os.O_EXCL))  # fails when another one is inside
    os.unlink(sentinel)
    lock.release(worker_id)
"""


def test_taking_and_giving_back_again_and_again_never_lets_two_in(tmp_path: Path) -> None:
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", CROWD, str(tmp_path), "300"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    try:
        for process in crowd:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in crowd:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in crowd:
            _, errors = process.communicate(timeout=GUARD_S)
            assert process.returncode == 0, errors
    finally:
        for process in crowd:
            process.kill()
    assert not list(tmp_path.iterdir())


HOLDER = """
import os, pathlib, signal
from marin_dagster.cache import StepCache, worker_ids
from marin_dagster.steps import StepSpec

worker_ids._PROC = pathlib.Path("/nowhere")  # as on a system from whose ids nothing can be seen
StepCache().begin(StepSpec("step", fn=print))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed_holder() -> int:
    """The id of a process that began to build ``step`` and was killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER])
    assert process.wait(GUARD_S) == -signal.SIGKILL
    return process.pid


def test_the_output_of_a_killed_process_is_taken_over_once_its_lease_is_stale(
    killed_holder: int,
) -> None:
    step = make("step")
    assert get(step, STATUS) == "RUNNING"
    found = StepCache().look_up(step)
    assert found.state is CacheState.RUNNING
    assert f"-{killed_holder}-" in (found.owner or "")

    attempt = begin(step, StepCache(LeaseTiming(stale_s=0.3, poll_s=0.01)))
    assert get(step, STATUS) == "RUNNING"
    assert str(os.getpid()) in (get(step, LOCK) or "")
    attempt.commit()
    assert (get(step, STATUS), get(step, LOCK)) == ("SUCCESS", None)


def test_the_lease_of_a_killed_process_is_respected_until_it_is_stale(killed_holder: int) -> None:
    class Waited(Exception):
        pass

    def wait(seconds: float) -> None:
        raise Waited

    content = get(make("step"), LOCK)
    with pytest.raises(Waited):
        StepCache().begin(make("step"), wait=wait)
    assert get(make("step"), LOCK) == content


BUILDER = """
import sys
from pathlib import Path
from marin_dagster.cache import Hit, LeaseTiming, StepCache
from marin_dagster.steps import StepSpec

def fn(output_path):
    with open(sys.argv[1], "a") as log:
        log.write("built\\n")

step = StepSpec("shared", fn=fn)
found = StepCache(LeaseTiming(poll_s=0.01)).begin(step)
if not isinstance(found, Hit):
    fn(step.output_path)
    found.commit()
"""


def test_of_many_processes_that_want_one_step_one_builds_it_and_all_are_served(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    command = [sys.executable, "-c", BUILDER, str(log)]
    everyone = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(GUARD_S) for process in everyone] == [0] * 4
    assert log.read_text() == "built\n"
    python(BUILDER, str(log))
    assert log.read_text() == "built\n"
