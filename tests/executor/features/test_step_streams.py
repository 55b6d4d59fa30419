"""What a step may do to ``sys.stdout`` and its like, and what is left of that after the run."""

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Run, run_job
from helpers.step_jobs import JOB, PATIENCE_S, log_of, steps_job
from marin_dagster import StepSpec


def _run(instance: dg.DagsterInstance, name: str, function: Callable[[], Any]) -> Run:
    def build(output_path: str) -> None:
        function()

    return run_job(steps_job(StepSpec(name, fn=build)), instance, job=JOB)


def test_after_a_run_streams_handlers_and_threads_are_as_before(
    instance: dg.DagsterInstance,
) -> None:
    def state() -> list[Any]:
        handlers = list(logging.getLogger().handlers)
        return [sys.stdout, sys.stderr, threading.Thread.start, handlers]

    def fail() -> None:
        print("hello")
        raise RuntimeError("fails on purpose")

    before = state()
    _run(instance, "good", lambda: print("hello"))
    _run(instance, "bad", fail)

    assert state() == before


def test_a_step_that_closes_stdout_closes_nobodys(
    instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    def close() -> None:
        print("before")
        sys.stdout.close()
        sys.stderr.close()
        print("after")

    run = _run(instance, "close", close)
    print("the process goes on")

    assert run.success
    assert log_of(instance, run, "close") == "before\nafter\n"
    assert "the process goes on" in capsys.readouterr().out


def test_a_step_may_redirect_stdout_for_a_while(instance: dg.DagsterInstance) -> None:
    kept = io.StringIO()

    def redirect() -> None:
        print("before")
        with contextlib.redirect_stdout(kept):
            print("inside")
        print("after")

    run = _run(instance, "redirect", redirect)

    assert kept.getvalue() == "inside\n"
    assert log_of(instance, run, "redirect") == "before\nafter\n"


def test_a_stdout_that_a_step_leaves_behind_doubles_no_line_of_later_runs(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # restores it after the test

    class Tee(io.TextIOBase):
        def __init__(self, below: Any) -> None:
            self.below = below

        def write(self, text: str) -> int:
            return int(self.below.write(text))

    def replace() -> None:
        sys.stdout = Tee(sys.stdout)  # type: ignore[assignment]
        print("first")

    first = _run(instance, "replace", replace)
    second = _run(instance, "later", lambda: print("second"))

    assert log_of(instance, first, "replace") == "first\n"
    assert log_of(instance, second, "later") == "second\n"


def test_a_thread_that_outlives_its_step_prints_without_harm(
    instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    step_is_over = threading.Event()
    threads: list[threading.Thread] = []
    raised: list[BaseException] = []

    def late(stdout: Any) -> None:
        step_is_over.wait(PATIENCE_S)
        try:
            print("late")
            print("late, by the old name", file=stdout)
        except BaseException as error:
            raised.append(error)

    def start() -> None:
        print("in time")
        threads.append(threading.Thread(target=late, args=(sys.stdout,)))
        threads[0].start()

    run = _run(instance, "start", start)
    step_is_over.set()
    threads[0].join(PATIENCE_S)

    assert not raised
    assert log_of(instance, run, "start") == "in time\n"
    assert "late, by the old name" in capsys.readouterr().out


def test_text_that_utf8_cannot_hold_is_written_as_well_as_can_be(
    instance: dg.DagsterInstance,
) -> None:
    def talk() -> None:
        print("before")
        print("file \udcff.txt é")
        print("after")

    run = _run(instance, "talk", talk)

    assert run.success
    before, between, after = log_of(instance, run, "talk").splitlines()
    assert (before, after) == ("before", "after")
    assert between.startswith("file ")
    assert between.endswith(".txt é")


def test_bytes_may_be_written_to_the_buffer(instance: dg.DagsterInstance) -> None:
    def talk() -> None:
        sys.stdout.buffer.write(b"\xff\xfe raw\n")
        sys.stdout.buffer.flush()
        print("text")

    run = _run(instance, "talk", talk)

    assert run.success
    assert log_of(instance, run, "talk") == "text\n"


def test_a_script_may_ask_stdout_what_it_asks_of_a_real_one(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    monkeypatch.setattr(sys, "stdout", real)
    answers: list[Any] = []

    def ask() -> None:
        stdout: Any = sys.stdout
        stdout.reconfigure(line_buffering=True)
        answers.extend([stdout.encoding, stdout.errors, stdout.isatty(), stdout.writable()])

    assert _run(instance, "ask", ask).success

    assert answers == ["utf-8", "strict", False, True]


def test_a_process_without_stdout_runs_steps_that_print(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As Python sets it when the descriptor is closed.
    monkeypatch.setattr(sys, "stdout", None)

    run = _run(instance, "talk", lambda: print("hello", flush=True))

    assert run.success
    assert log_of(instance, run, "talk") == "hello\n"
