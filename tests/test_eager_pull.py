"""``StepRunner.run`` of an iterable that is still being made while its first steps run."""

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from helpers.runs import Recorder, is_locked, status_of
from marin_dagster import OUT, StepRunner, StepSpec, apply
from marin_dagster.errors import GraphError, OutputNotReadyError, StepsFailedError

PATIENCE_S = 120
"""Longest wait for something that must happen; only a deadlock ever takes so long."""


def test_the_first_step_runs_before_the_second_is_drawn(recorder: Recorder) -> None:
    ran = threading.Event()

    first = StepSpec("first", fn=lambda _: ran.set())

    def steps() -> Iterator[StepSpec]:
        yield first
        assert ran.wait(PATIENCE_S)
        yield recorder.step("second", first)

    results = StepRunner().run(steps())

    assert recorder.calls == ["second"]
    assert [output.name_with_hash.partition("_")[0] for output in results.values()] == [
        "first",
        "second",
    ]


def test_an_iterable_without_an_end_is_consumed() -> None:
    enough = threading.Event()
    drawn: list[int] = []
    ahead: list[int] = []
    ran: list[int] = []

    def build(number: int) -> None:
        ran.append(number)
        ahead.append(len(drawn))
        if number == 3:
            enough.set()

    def steps() -> Iterator[StepSpec]:
        for number in itertools.takewhile(lambda _: not enough.is_set(), itertools.count()):
            drawn.append(number)
            yield StepSpec(f"step{number}", fn=lambda _, number=number: build(number))

    results = StepRunner(1).run(steps())

    assert sorted(ran) == drawn
    assert len(results) == len(drawn)
    # The first portion runs with at most as many drawn again, and one that waits for a free place.
    assert max(ahead[:4]) <= 8 + 8 + 1


def test_a_generators_error_comes_after_what_it_had_yielded_has_run(recorder: Recorder) -> None:
    def steps() -> Iterator[StepSpec]:
        yield recorder.step("good")
        yield recorder.step("bad", fails=True)
        raise LookupError("no more datasets")

    with pytest.raises(LookupError, match="no more datasets") as raised:
        StepRunner().run(steps())

    assert sorted(recorder.calls) == ["bad", "good"]
    assert raised.value.__notes__ == ["before that, a step failed: bad fails on purpose"]


def test_a_step_that_succeeds_after_a_retry_holds_nothing_back(recorder: Recorder) -> None:
    ran, tries = threading.Event(), itertools.count()

    def build(_: str) -> None:
        if next(tries) == 0:
            raise dg.RetryRequested
        ran.set()

    flaky = StepSpec("flaky", fn=build)

    def steps() -> Iterator[StepSpec]:
        yield flaky
        assert ran.wait(PATIENCE_S)
        yield recorder.step("below", flaky)

    StepRunner().run(steps())

    assert recorder.calls == ["below"]


def test_data_that_is_missing_in_two_portions_is_one_failure(recorder: Recorder) -> None:
    ran = threading.Event()
    missing = StepSpec("missing")

    def steps() -> Iterator[StepSpec]:
        yield missing
        yield StepSpec("between", fn=lambda _: ran.set())
        assert ran.wait(PATIENCE_S)
        yield missing
        yield recorder.step("last")

    with pytest.raises(StepsFailedError, match=r"^1 step\(s\) failed: missing_") as raised:
        StepRunner().run(steps())

    assert len(raised.value.exceptions) == 1
    assert recorder.calls == ["last"]


def test_results_and_errors_of_all_runs_come_back_as_one(
    recorder: Recorder, tmp_path: Path
) -> None:
    bad = recorder.step("bad", fails=True)
    ends = [recorder.step("end0"), recorder.step("end1", bad), recorder.step("end2", fails=True)]

    def steps() -> Iterator[StepSpec]:
        yield bad
        for end in ends:
            # Each in a run of its own.
            while "bad" not in recorder.calls or status_of(bad) != "FAILED":
                threading.Event().wait(0.01)
            yield end

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        with pytest.raises(StepsFailedError, match=r"2 step\(s\) failed") as raised:
            StepRunner(instance=instance).run(steps())
        assert instance.get_runs_count() > 1

    assert sorted(map(str, raised.value.exceptions)) == [
        "bad fails on purpose",
        "end2 fails on purpose",
    ]
    # Nothing is tried a second time, and what is below a failure is not tried at all.
    assert sorted(recorder.calls) == ["bad", "end0", "end2"]
    assert status_of(ends[1]) is None


def test_a_dev_version_is_built_once_in_a_call() -> None:
    calls: list[str] = []
    ran = threading.Event()
    shared = apply("shared", lambda out: calls.append("shared"), version="dev", out=OUT)

    def reads(name: str) -> object:
        def build(of: str, out: str) -> None:
            calls.append(name)
            ran.set()

        return apply(name, build, version="dev", of=shared, out=OUT)

    def handles() -> Iterator[object]:
        yield reads("one")
        assert ran.wait(PATIENCE_S)
        yield reads("two")

    StepRunner().run(handles())

    assert calls == ["shared", "one", "two"]


def test_what_is_no_step_ends_it_after_what_has_begun(recorder: Recorder) -> None:
    ran = threading.Event()

    def steps() -> Iterator[object]:
        yield StepSpec("good", fn=lambda _: ran.set())
        assert ran.wait(PATIENCE_S)
        yield "no step"
        yield from (recorder.step(f"step{number}") for number in itertools.count())

    with pytest.raises(GraphError):
        StepRunner().run(steps())

    assert ran.is_set()


def test_a_dry_run_draws_everything_and_runs_nothing(recorder: Recorder) -> None:
    step = recorder.step("step")

    results = StepRunner().run(iter([step]), dry_run=True)

    assert recorder.calls == []
    with pytest.raises(OutputNotReadyError, match="dry run"):
        results[step]


SCRIPT = """
import pathlib, signal, time
from marin_dagster import StepRunner, StepSpec

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored

def wait(output_path):
    pathlib.Path(output_path, "started").write_text("yes")
    while True:
        time.sleep(0.05)

def steps():
    step = StepSpec("step", fn=wait)
    yield step
    while {waits}:
        time.sleep(0.05)

StepRunner().run(steps())
"""


@pytest.mark.parametrize("waits", ["True", "False"])
def test_ctrl_c_stops_the_steps_while_drawing_and_after(waits: str) -> None:
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("{waits}", waits)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    step = StepSpec("step", fn=print)
    waited = threading.Event()
    while not Path(step.output_path, "started").exists():
        assert script.poll() is None
        waited.wait(0.05)

    script.send_signal(signal.SIGINT)
    _, stderr = script.communicate(timeout=PATIENCE_S)

    assert script.returncode != 0
    assert b"KeyboardInterrupt" in stderr
    assert status_of(step) == "FAILED"
    assert not is_locked(step)
