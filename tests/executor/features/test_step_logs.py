"""Each step's output in its own compute log: whatever way it is written, and from which thread."""

import contextlib
import io
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import dagster as dg
import pytest

from helpers.runs import Run, run_job
from helpers.step_jobs import JOB, PATIENCE_S, log_of, steps_job
from marin_dagster import ResourceConfig, StepSpec


def _run(instance: dg.DagsterInstance, **functions: Callable[[], Any]) -> Run:
    """Run one step for each function, named like the argument."""

    def step(name: str, function: Callable[[], Any]) -> StepSpec:
        def build(output_path: str) -> None:
            function()

        return StepSpec(name, fn=build)

    return run_job(steps_job(*[step(*item) for item in functions.items()]), instance, job=JOB)


@pytest.fixture
def bare_logging() -> Iterator[logging.Logger]:
    """The root logger, for a test that takes pytest's handlers off to have a fresh process's."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.setLevel(logging.WARNING)
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_prints_and_errors_go_to_their_own_streams(instance: dg.DagsterInstance) -> None:
    def talk() -> None:
        print("to stdout", 1, sep="|")
        sys.stdout.writelines(["a\n", "b\n"])
        print("to stderr", file=sys.stderr)

    run = _run(instance, talk=talk)

    assert log_of(instance, run, "talk") == "to stdout|1\na\nb\n"
    assert log_of(instance, run, "talk", "stderr") == "to stderr\n"
    [event] = run.of_type("LOGS_CAPTURED")
    assert event.logs_captured_data.step_keys == ["talk"]


def _kill_own_process(output_path: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(output_path: str) -> None:
    raise LookupError("no such corpus\nand more")


FAILS_SILENTLY = {
    "in a thread": (StepSpec("fails", fn=_raise), "LookupError: no such corpus"),
    "in a process": (
        StepSpec("fails", fn=_kill_own_process, resources=ResourceConfig(ram="256m")),
        "died: signal 9 (SIGKILL)",
    ),
}


@pytest.mark.parametrize(("step", "error"), FAILS_SILENTLY.values(), ids=FAILS_SILENTLY)
def test_a_step_that_fails_without_output_has_a_log_with_its_error(
    step: StepSpec, error: str, instance: dg.DagsterInstance
) -> None:
    run = run_job(steps_job(step), instance, job=JOB)

    assert not run.success
    assert [e.logs_captured_data.step_keys for e in run.of_type("LOGS_CAPTURED")] == [["fails"]]
    [line] = log_of(instance, run, "fails", "stderr").splitlines()
    assert error in line


def test_silent_steps_make_no_log_and_no_event(instance: dg.DagsterInstance) -> None:
    run = _run(instance, silent=lambda: None, talk=lambda: print("hello"))

    assert [e.logs_captured_data.step_keys for e in run.of_type("LOGS_CAPTURED")] == [["talk"]]
    assert log_of(instance, run, "silent") == ""


def test_the_log_can_be_read_while_the_step_runs(instance: dg.DagsterInstance) -> None:
    seen: list[str] = []
    events: list[int] = []

    def build() -> None:
        print("half way")
        [record] = instance.get_run_records()
        run_id = record.dagster_run.run_id
        seen.append(log_of(instance, run_id, "train"))
        events.append(
            len(
                instance.get_records_for_run(
                    run_id, of_type=dg.DagsterEventType.LOGS_CAPTURED
                ).records
            )
        )

    assert _run(instance, train=build).success

    assert seen == ["half way\n"]
    assert events == [1]


def test_of_eight_steps_at_once_with_threads_of_their_own_no_line_is_in_anothers_log(
    instance: dg.DagsterInstance,
) -> None:
    together = threading.Barrier(8)

    def talker(name: str) -> Callable[[], None]:
        def child() -> None:
            print(f"{name} thread")

        def talk() -> None:
            for number in range(10):
                together.wait(PATIENCE_S)
                print(f"{name} main {number}")
                logging.getLogger(name).warning("%s logs %s", name, number)
            thread = threading.Thread(target=child)
            timer = threading.Timer(0, child)
            for one in (thread, timer):
                one.start()
                one.join(PATIENCE_S)
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda n: print(f"{name} pool {n}\n", end=""), range(4)))

        return talk

    names = [f"step_{index}" for index in range(8)]
    run = _run(instance, **{name: talker(name) for name in names})

    assert run.success
    for name in names:
        lines = log_of(instance, run, name).splitlines()
        assert sorted(lines) == sorted(
            [f"{name} main {n}" for n in range(10)]
            + [f"{name} thread"] * 2
            + [f"{name} pool {n}" for n in range(4)]
        )
        errors = log_of(instance, run, name, "stderr").splitlines()
        assert [line.split(": ")[1] for line in errors] == [f"{name} logs {n}" for n in range(10)]


def test_logging_is_in_the_log_once_before_and_after_a_handler_is_made_in_the_step(
    instance: dg.DagsterInstance, bare_logging: logging.Logger
) -> None:
    bare_logging.handlers.clear()

    def talk() -> None:
        bare_logging.warning("before")
        handler = logging.StreamHandler()
        bare_logging.addHandler(handler)
        bare_logging.warning("after")
        bare_logging.removeHandler(handler)

    run = _run(instance, talk=talk)

    text = log_of(instance, run, "talk", "stderr")
    assert (text.count("before"), text.count("after")) == (1, 1)


def test_basic_config_in_a_step_does_what_it_does_in_a_script(
    instance: dg.DagsterInstance, bare_logging: logging.Logger
) -> None:
    bare_logging.handlers.clear()

    def talk() -> None:
        logging.basicConfig(level=logging.INFO, format="mine: %(message)s")
        logging.info("after")

    run = _run(instance, talk=talk)

    assert log_of(instance, run, "talk", "stderr") == "mine: after\n"


def test_forced_basic_config_logs_once_in_this_run_and_the_next(
    instance: dg.DagsterInstance, bare_logging: logging.Logger
) -> None:
    bare_logging.handlers.clear()

    def talk() -> None:
        logging.basicConfig(level=logging.INFO, format="mine: %(message)s", force=True)
        logging.info("first")

    first = _run(instance, one=talk)
    second = _run(instance, two=lambda: logging.info("second"))

    assert log_of(instance, first, "one", "stderr") == "mine: first\n"
    assert log_of(instance, second, "two", "stderr") == "mine: second\n"


def test_a_custom_handler_gets_its_lines_and_so_does_the_log(
    instance: dg.DagsterInstance, bare_logging: logging.Logger
) -> None:
    bare_logging.handlers.clear()
    file = io.StringIO()

    def talk() -> None:
        handler = logging.StreamHandler(file)
        logger = logging.getLogger("mine")
        logger.addHandler(handler)
        logger.warning("hello")
        logger.removeHandler(handler)

    run = _run(instance, talk=talk)

    assert file.getvalue() == "hello\n"
    assert log_of(instance, run, "talk", "stderr").count("hello") == 1


def test_warnings_are_in_stderr(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def show(message: Any, category: Any, filename: str, lineno: int, *rest: Any) -> None:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))

    # As Python does without pytest, which collects warnings.
    monkeypatch.setattr(warnings, "showwarning", show)

    run = _run(instance, talk=lambda: warnings.warn("old data", UserWarning, stacklevel=2))

    assert "UserWarning: old data" in log_of(instance, run, "talk", "stderr")


def test_carriage_returns_and_long_lines_arrive_as_they_are(instance: dg.DagsterInstance) -> None:
    def bar() -> None:
        for percent in (0, 50, 100):
            sys.stderr.write(f"\r{percent}%|###")
        sys.stderr.flush()

    run = _run(instance, bar=bar, huge=lambda: print("x" * 5_000_000))

    key = instance.compute_log_manager.build_log_key_for_run(run.run_id, "bar")
    assert instance.compute_log_manager.get_log_data(key).stderr == b"\r0%|###\r50%|###\r100%|###"
    assert log_of(instance, run, "huge") == "x" * 5_000_000 + "\n"


def test_a_lost_log_stream_never_reaches_the_step(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Callable[..., Any] = instance.compute_log_manager.open_log_stream

    @contextlib.contextmanager
    def no_stderr(key: Any, kind: Any) -> Iterator[IO[Any]]:
        if kind.value == "stderr":
            raise OSError("no space left on device")
        with opened(key, kind) as stream:
            yield stream

    monkeypatch.setattr(instance.compute_log_manager, "open_log_stream", no_stderr)

    def talk() -> None:
        for stream in (sys.stdout, sys.stderr, sys.stdout, sys.stderr):
            print("hello", file=stream)

    assert _run(instance, talk=talk).success
