"""What every engine must do. A test module makes the fixtures ``engine`` and ``runner``, and has
these tests by subclassing ``Conformance``."""

import dataclasses
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from helpers import step_functions
from helpers.job_driver import Drive, Engine, Stopped
from helpers.processes import is_dead
from helpers.runs import is_locked, status_of
from helpers.step_functions import beside
from marin_dagster import StepSpec
from marin_dagster.assets.job_exceptions import restore
from marin_dagster.cache import OutputDir, read_record
from marin_dagster.errors import JobFailedError, RemoteFunctionError, RunnerError
from marin_dagster.runners import JobState, Runner, read_job_file


def drive(runner: Runner, step: StepSpec) -> Drive:
    return Drive(step, runner).start()


def pids_of(step: StepSpec) -> list[int]:
    return [int(pid) for pid in Path(step.output_path, "pids").read_text().split()]


def is_waiting(step: StepSpec) -> bool:
    pids = Path(step.output_path, "pids")
    return pids.exists() and len(pids.read_text().split()) == 2


def go(step: StepSpec) -> None:
    beside(step.output_path, "go").write_text("go")


def is_clean(step: StepSpec) -> bool:
    """Nothing of the attempt stands in the way of the next."""
    return not is_locked(step) and read_job_file(OutputDir.at(step.output_path)) is None


class Conformance:
    """Tests for one engine."""

    @pytest.fixture
    def runner(self, engine: Engine) -> Iterator[Runner]:
        runner = engine.runner()
        yield runner
        runner.close()

    def test_a_function_runs_elsewhere_and_leaves_its_record(
        self, engine: Engine, runner: Runner
    ) -> None:
        step = engine.step("make", step_functions.write, hash_attrs={"size": 3})

        done = drive(runner, step).end()

        assert status_of(step) == "SUCCESS"
        assert is_clean(step)
        assert Path(step.output_path, "data.txt").read_text() == "made"
        record = read_record(OutputDir.at(step.output_path))
        assert record is not None
        assert record.result is not None
        assert record.result["pid"] != os.getpid()
        assert (record.name, record.config) == ("make", {"size": 3})
        assert record.provenance is not None
        assert "on stdout\n" in done.text("stdout")
        assert "on stderr\n" in done.text("stdout") + done.text("stderr")
        assert any(done.job.label in line for line in done.logged if done.job)

    def test_an_exception_comes_back_with_its_traceback(
        self, engine: Engine, runner: Runner
    ) -> None:
        step = engine.step("fail", step_functions.raise_error)

        with pytest.raises(RemoteFunctionError) as raised:
            drive(runner, step).end()

        message = str(raised.value)
        assert "fail_" in message
        assert "LookupError: no such corpus" in message
        assert "step_functions.py" in message
        assert "in raise_error" in message
        assert status_of(step) == "FAILED"
        assert is_clean(step)

    def test_what_dagster_makes_of_an_exception_comes_back(
        self, engine: Engine, runner: Runner
    ) -> None:
        step = engine.step("give-up", step_functions.give_up)

        with pytest.raises(RemoteFunctionError, match="GivenUp: the corpus is empty") as raised:
            drive(runner, step).end()

        failure = restore(raised.value)
        assert isinstance(failure, dg.Failure)
        assert failure.description == "the corpus is empty"
        assert failure.allow_retries is False
        assert failure.metadata == {
            "rows": dg.MetadataValue.int(3),
            "page": dg.MetadataValue.url("https://example.com"),
        }

    def test_a_failed_step_runs_again_and_old_traces_are_not_mistaken(
        self, engine: Engine, runner: Runner
    ) -> None:
        step = engine.step("again", step_functions.raise_error)
        first = drive(runner, step)
        with pytest.raises(RemoteFunctionError):
            first.end()

        fixed = dataclasses.replace(step, fn=step_functions.write)
        second = drive(runner, fixed).end()

        assert status_of(step) == "SUCCESS"
        assert first.job is not None
        assert second.job is not None
        assert first.job.name != second.job.name

    def test_a_finished_output_is_built_again_and_stays_finished_where_no_worker_can_begin(
        self, engine: Engine, runner: Runner
    ) -> None:
        step = engine.step("rebuild", step_functions.write)
        drive(runner, step).end()
        record = Path(step.output_path, ".artifact.json")
        first = record.read_bytes()
        stuck = dataclasses.replace(step, fn=partial(step_functions.write, threading.Lock()))

        with pytest.raises(RunnerError, match="cannot be sent to a worker"):
            Drive(stuck, runner, force=True).start().end()

        assert (status_of(step), record.read_bytes()) == ("SUCCESS", first)
        assert is_clean(step)

        Drive(step, runner, force=True).start().end()

        assert status_of(step) == "SUCCESS"
        assert record.read_bytes() != first
        assert is_clean(step)

    def test_a_segmentation_fault_is_named(self, engine: Engine, runner: Runner) -> None:
        step = engine.step("crash", step_functions.segfault)

        with pytest.raises(JobFailedError, match="SIGSEGV"):
            drive(runner, step).end()

        assert status_of(step) == "FAILED"
        assert is_clean(step)

    def test_the_log_comes_while_the_job_runs(self, engine: Engine, runner: Runner) -> None:
        step = engine.step("talk", step_functions.wait_to_go)
        running = drive(runner, step)

        running.until(lambda: "waiting to go\n" in running.text("stdout"))

        assert status_of(step) == "RUNNING"
        go(step)
        running.end()

    @pytest.mark.parametrize(
        ("levels", "expected"),
        [
            ({"": logging.INFO}, {"info of root", "info of chatty", "info of quiet"}),
            (
                {"": logging.WARNING, "chatty": logging.DEBUG, "quiet": logging.ERROR},
                {"debug of chatty", "info of chatty"},
            ),
        ],
        ids=["root", "single loggers"],
    )
    def test_the_job_logs_at_the_levels_of_the_run_and_each_line_once(
        self, engine: Engine, runner: Runner, levels: dict[str, int], expected: set[str]
    ) -> None:
        step = engine.step("log", step_functions.log)

        done = Drive(step, runner, log_levels=levels).start().end()

        text = done.text("stdout") + done.text("stderr")
        logged = re.findall(r"\b(?:debug|info|warning) of \w+$", text, re.MULTILINE)
        quiet = {"warning of quiet"} if "quiet" in levels else set()
        warnings = {f"warning of {name}" for name in ("root", "chatty", "quiet")} - quiet
        assert sorted(logged) == sorted(expected | warnings)

    def test_cancel_stops_a_running_job_and_its_children(
        self, engine: Engine, runner: Runner
    ) -> None:
        step = engine.step("stop", step_functions.wait_to_go)
        running = drive(runner, step)
        running.until(lambda: is_waiting(step))

        running.stop()
        with pytest.raises(Stopped):
            running.end()

        assert running.job is not None
        assert running.job.status.state is JobState.CANCELLED
        assert all(is_dead(pid) for pid in pids_of(step))
        assert status_of(step) == "FAILED"
        assert is_clean(step)
        running.job.cancel()  # again does no harm

    def test_eight_threads_share_a_runner(self, engine: Engine, runner: Runner) -> None:
        steps = [engine.step(f"many{n}", step_functions.write) for n in range(8)]

        for one in [drive(runner, step) for step in steps]:
            one.end()

        assert {status_of(step) for step in steps} == {"SUCCESS"}

    def test_after_the_drivers_death_the_job_is_not_started_a_second_time(
        self, engine: Engine, runner: Runner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step = engine.step("orphan", step_functions.wait_to_go)
        folder = Path(__file__).parents[1]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))
        driver = subprocess.Popen(
            [
                sys.executable,
                str(folder / "helpers" / "job_driver.py"),
                json.dumps(dataclasses.asdict(engine)),
                "orphan",
                "wait_to_go",
            ]
        )
        # An engine may have taken the job without having answered the driver.
        watched = Drive(step, runner)
        watched.until(lambda: is_waiting(step) or driver.poll() is not None)
        assert driver.poll() is None
        first = pids_of(step)
        driver.send_signal(signal.SIGKILL)
        driver.wait()

        if not engine.outlives_driver:
            watched.until(lambda: all(is_dead(pid) for pid in first))
        go(step)
        watched.start().end()

        assert status_of(step) == "SUCCESS"
        assert is_clean(step)
        entries = beside(step.output_path, "entries").read_text().splitlines()
        assert len(entries) == (1 if engine.outlives_driver else 2)
        if engine.outlives_driver:
            assert any("attached" in line for line in watched.logged)


class MemoryConformance:
    """Tests for an engine that limits its jobs' memory here."""

    def test_running_out_of_memory_is_named(self, engine: Engine, runner: Runner) -> None:
        step = engine.step("eat", step_functions.eat_memory)

        with pytest.raises(RunnerError, match="out of memory"):
            drive(runner, step).end()

        assert status_of(step) == "FAILED"


class QueueConformance:
    """Tests for an engine whose jobs wait for ``engine.slots``."""

    def test_cancel_stops_a_pending_job(self, engine: Engine, runner: Runner) -> None:
        others = [engine.step(f"busy{n}", step_functions.wait_to_go) for n in range(engine.slots)]
        busy = [drive(runner, other) for other in others]
        for one, other in zip(busy, others, strict=True):
            one.until(lambda other=other: is_waiting(other))
        step = engine.step("late", step_functions.wait_to_go)
        pending = drive(runner, step)
        pending.until(lambda: pending.job is not None)

        pending.stop()
        with pytest.raises(Stopped):
            pending.end()

        assert not beside(step.output_path, "entries").exists()
        assert status_of(step) == "FAILED"
        assert is_clean(step)
        for other in others:
            go(other)
        for one in busy:
            one.end()
