"""Processes that want the same steps at the same time: each step's function runs exactly once.

The workers live as long as the test; for each race they receive the steps over a pipe, report that
they stand at the start, and are sent off together.
"""

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from helpers.cache import GUARD_S, LOCK, RECORD, STATUS, make
from marin_dagster.cache import OutputDir

pytestmark = pytest.mark.slow

WORKER = """
import os, sys
from marin_dagster.cache import Hit, LeaseTiming, StepCache
from marin_dagster.steps import StepSpec

calls = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
cache = StepCache(LeaseTiming(poll_s=float(sys.argv[2])))

def step(name):
    def build(output_path):
        os.write(calls, f"{name}\\n".encode())
        return {"made_by": name}
    return StepSpec(name, fn=build)

def want(step):
    found = cache.begin(step)
    if isinstance(found, Hit):
        assert found.record.result == {"made_by": step.name}
        return "served"
    found.result = step.fn(step.output_path)
    found.commit()
    return "built"

print("ready", flush=True)
for line in sys.stdin:
    steps = [step(name) for name in line.split()]
    print("at the start", flush=True)
    sys.stdin.readline()
    print(*[want(step) for step in steps], flush=True)
"""

POLL_S = {"disk": "0.002", "bucket": "0.02"}


class Worker:
    """A process at the other end of two pipes."""

    def __init__(self, calls: Path, poll_s: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(calls), poll_s],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, text: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=GUARD_S)


@contextmanager
def workers(count: int, calls: Path, poll_s: str) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        crowd = []
        for _ in range(count):
            crowd.append(Worker(calls, poll_s))
            stack.callback(crowd[-1].stop)
        assert [worker.hear() for worker in crowd] == ["ready"] * count
        yield crowd


def race(crowd: Sequence[Worker], orders: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Every worker wants its steps, all at once; what each got, by the step's name."""
    for worker, names in zip(crowd, orders, strict=True):
        worker.send(" ".join(names))
    assert {worker.hear() for worker in crowd} == {"at the start"}
    for worker in crowd:
        worker.send("go")
    found = [worker.hear().split() for worker in crowd]
    return [dict(zip(names, got, strict=True)) for names, got in zip(orders, found, strict=True)]


def check_built_once(names: Sequence[str], calls: Path) -> None:
    """Each function ran once; each output is finished, complete, and not locked."""
    assert Counter(calls.read_text().split()) == dict.fromkeys(names, 1)
    for name in names:
        step = make(name)
        folder = OutputDir.at(step.output_path)
        assert folder.read(STATUS) == b"SUCCESS"
        record = json.loads(folder.read(RECORD) or b"")
        assert (record["name"], record["result"]) == (name, {"made_by": name})
        assert record["output_path"] == step.output_path
        assert folder.read(LOCK) is None


def run_races(count: int, calls: Path, poll_s: str) -> None:
    """Two workers, ``count`` steps one after the other; who is sent off first alternates."""
    names = [f"step{number}" for number in range(count)]
    with workers(2, calls, poll_s) as both:
        for number, name in enumerate(names):
            results = race(both if number % 2 else both[::-1], [[name], [name]])
            assert sorted(result[name] for result in results) == ["built", "served"]
    check_built_once(names, calls)


def run_crowd(calls: Path, poll_s: str) -> None:
    """Four workers, each of which wants all of 20 steps in an order of its own."""
    names = [f"step{number}" for number in range(20)]
    shuffle = random.Random(20).sample
    with workers(4, calls, poll_s) as crowd:
        results = race(crowd, [shuffle(names, len(names)) for _ in crowd])
    for name in names:
        got = sorted(result[name] for result in results)
        assert got == ["built", "served", "served", "served"]
    check_built_once(names, calls)


@pytest.fixture
def bucket(s3_prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The durable prefix lies in a bucket."""
    monkeypatch.setenv("MARIN_PREFIX", s3_prefix)


def test_of_two_processes_exactly_one_builds_in_each_of_500_races_on_disk(tmp_path: Path) -> None:
    run_races(500, tmp_path / "calls", POLL_S["disk"])


@pytest.mark.usefixtures("bucket")
def test_of_two_processes_exactly_one_builds_in_each_of_50_races_in_a_bucket(
    tmp_path: Path,
) -> None:
    run_races(50, tmp_path / "calls", POLL_S["bucket"])


def test_four_processes_build_20_shared_steps_once_each_on_disk(tmp_path: Path) -> None:
    run_crowd(tmp_path / "calls", POLL_S["disk"])


@pytest.mark.usefixtures("bucket")
def test_four_processes_build_20_shared_steps_once_each_in_a_bucket(tmp_path: Path) -> None:
    run_crowd(tmp_path / "calls", POLL_S["bucket"])
