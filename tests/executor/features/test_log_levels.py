"""Which lines of Python's logging are in a step's log and in Dagster's, each of them once."""

import logging
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Run, run_job
from helpers.step_jobs import JOB, PATIENCE_S, log_of, steps_job
from marin_dagster import ResourceConfig, StepSpec

LEVELS = ("debug", "info", "warning", "error")


@pytest.fixture(autouse=True)
def fresh_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loggers as a process has them that has set up nothing; Dagster sets levels for good."""
    root, quiet, mine = (logging.getLogger(name) for name in (None, "quiet", "mine"))
    before = [(logger, logger.level) for logger in (root, quiet, mine)]
    handlers = root.handlers[:]
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    yield
    root.handlers[:] = handlers
    for logger, level in before:
        logger.setLevel(level)


def talk(name: str = "") -> None:
    """Log at each level with the root logger and with one of its own."""
    for level in LEVELS:
        getattr(logging, level)("root %s %s", name, level)
        getattr(logging.getLogger("mine"), level)("mine %s %s", name, level)


def lines(first: str, *levels: str, name: str = "") -> list[str]:
    return [f"{first} {name} {level}" for level in levels]


def log_lines(text: str) -> list[str]:
    """The messages in a log, sorted."""
    return sorted(found[0] for found in re.finditer(r"(root|mine) \S* \w+$", text, re.MULTILINE))


def in_dagster(instance: dg.DagsterInstance, run: Run) -> Counter[tuple[str | None, str]]:
    """The lines of Python's logging in a run's event log, with their steps."""
    return Counter(
        (entry.step_key, entry.user_message)
        for entry in instance.all_logs(run.run_id)
        if entry.dagster_event is None and entry.user_message.startswith(("root ", "mine "))
    )


def _run(instance: dg.DagsterInstance, *steps: StepSpec, **config: Any) -> Run:
    run = run_job(steps_job(*steps), instance, job=JOB, config=config)
    assert run.success
    return run


def step(name: str, function: Callable[[], None], **fields: Any) -> StepSpec:
    return StepSpec(name, fn=lambda output_path: function(), **fields)


IN_A_PROCESS = {"resources": ResourceConfig(cpu=1, ram="1g")}


@pytest.mark.parametrize("fields", [{}, IN_A_PROCESS], ids=["thread", "process"])
@pytest.mark.parametrize(
    ("config", "levels"),
    [
        ({}, LEVELS[1:]),
        ({"log_level": "DEBUG"}, LEVELS),
        ({"log_level": "WARNING"}, LEVELS[2:]),
    ],
    ids=["default", "debug", "warning"],
)
def test_a_steps_log_has_info_unless_the_runs_config_chooses_another_level(
    instance: dg.DagsterInstance,
    capfd: pytest.CaptureFixture[str],
    fields: dict[str, Any],
    config: dict[str, Any],
    levels: tuple[str, ...],
) -> None:
    run = _run(instance, step("talk", talk, **fields), **config)

    assert log_lines(log_of(instance, run, "talk", "stderr")) == sorted(
        lines("root", *levels) + lines("mine", *levels)
    )
    if not fields:  # elsewhere in the process, logging is as it was
        assert not [line for line in capfd.readouterr().err.splitlines() if " info" in line]
        assert not logging.getLogger("mine").isEnabledFor(logging.INFO)


def test_a_level_that_somebody_has_set_is_kept(instance: dg.DagsterInstance) -> None:
    def speak() -> None:
        logging.getLogger("quiet").setLevel(logging.ERROR)
        logging.getLogger("quiet.child").warning("not this")
        logging.getLogger("quiet.child").error("but this")
        logging.getLogger("mine").setLevel(logging.DEBUG)
        logging.getLogger("mine").debug("and this")
        logging.disable(logging.INFO)
        logging.getLogger("other").info("nor this")
        logging.disable(logging.NOTSET)

    run = _run(instance, step("speak", speak))

    logged = log_of(instance, run, "speak", "stderr").splitlines()
    assert [line.rpartition(": ")[2] for line in logged] == ["but this", "and this"]


def test_handlers_get_what_they_got_without_the_steps_log(instance: dg.DagsterInstance) -> None:
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    listener = Listener()
    logging.getLogger("mine").addHandler(listener)
    try:
        _run(instance, step("talk", talk))
    finally:
        logging.getLogger("mine").removeHandler(listener)

    assert heard == lines("mine", *LEVELS[2:])


@pytest.mark.parametrize(
    ("managed", "level", "for_dagster", "for_steps"),
    [
        (["root"], "INFO", {"root": LEVELS[1:], "mine": LEVELS[1:]}, {}),
        (["mine"], "DEBUG", {"mine": LEVELS}, {"root": LEVELS[1:]}),
        # The root logger's level only adds lines to a step's log.
        (["root", "mine"], "ERROR", {"root": LEVELS[3:], "mine": LEVELS[3:]}, {"root": LEVELS[1:]}),
    ],
    ids=["root", "one", "both"],
)
def test_lines_of_managed_loggers_are_in_dagsters_log_of_their_step_and_in_its_own_once(
    managed: list[str],
    level: str,
    for_dagster: dict[str, tuple[str, ...]],
    for_steps: dict[str, tuple[str, ...]],
) -> None:
    together = threading.Barrier(2)

    def talker(name: str) -> Callable[[], None]:
        def speak() -> None:
            together.wait(PATIENCE_S)
            talk(name)
            thread = threading.Thread(target=talk, args=(f"{name}-thread",))
            thread.start()
            thread.join(PATIENCE_S)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(talk, f"{name}-pool").result()
            together.wait(PATIENCE_S)

        return speak

    settings = {"managed_python_loggers": managed, "python_log_level": level}
    with dg.instance_for_test(overrides={"python_logs": settings}) as instance:
        run = _run(instance, *[step(name, talker(name)) for name in ("one", "two")])
        recorded = in_dagster(instance, run)
        logs = {name: log_of(instance, run, name, "stderr") for name in ("one", "two")}

    def all_lines(name: str, levels: dict[str, tuple[str, ...]]) -> list[str]:
        speakers = (name, f"{name}-thread", f"{name}-pool")
        return [
            line
            for speaker in speakers
            for logger, some in levels.items()
            for line in lines(logger, *some, name=speaker)
        ]

    assert recorded == Counter(
        (name, line) for name in ("one", "two") for line in all_lines(name, for_dagster)
    )
    for name, log in logs.items():
        assert log_lines(log) == sorted(all_lines(name, for_dagster | for_steps))


def test_a_job_logs_at_the_levels_of_managed_loggers() -> None:
    settings = {"managed_python_loggers": ["mine"], "python_log_level": "DEBUG"}
    with dg.instance_for_test(overrides={"python_logs": settings}) as instance:
        run = _run(instance, step("talk", talk, **IN_A_PROCESS), log_level="WARNING")
        log = log_of(instance, run, "talk", "stderr")

    assert log_lines(log) == sorted(lines("root", *LEVELS[2:]) + lines("mine", *LEVELS))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise() -> None:
    raise RuntimeError("fails on purpose")


@pytest.mark.parametrize(
    ("function", "fields", "reason"),
    [(_die, IN_A_PROCESS, "SIGKILL"), (_raise, {}, "fails on purpose")],
    ids=["a job that dies", "a function that raises"],
)
@pytest.mark.parametrize("retries", [0, 1])
def test_what_fails_without_output_has_a_log_with_the_reason(
    instance: dg.DagsterInstance,
    function: Callable[[], None],
    fields: dict[str, Any],
    reason: str,
    retries: int,
) -> None:
    policy = dg.RetryPolicy(max_retries=1) if retries else None
    job = steps_job(step("silent", function, **fields), op_retry_policy=policy)

    run = run_job(job, instance, job=JOB)

    assert not run.success
    keys = [event.logs_captured_data.file_key for event in run.of_type("LOGS_CAPTURED")]
    assert keys == ["silent", "silent-2"][: 1 + retries]
    manager = instance.compute_log_manager
    for key in keys:
        log = manager.get_log_data(manager.build_log_key_for_run(run.run_id, key))
        assert reason in (log.stderr or b"").decode()
