"""Drift is a WARNING in Dagster's log and in Python's logging, once for each step and run."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.runs import memory_instance, run_job
from marin_dagster import OUT, ArtifactStep, StepRunner, apply, build_definitions
from marin_dagster.cache import Hit, StepCache

pytestmark = pytest.mark.slow

V = "2026.07.01"


def make(out: str, size: int = 1, sources: Any = ()) -> None:
    Path(out, "data.txt").write_text(str(size))


def handle(name: str, size: int = 1, sources: Any = (), **more: Any) -> ArtifactStep[Any]:
    return apply(name, make, version=V, out=OUT, size=size, sources=sources, **more)


def old_and_new(kind: str, tmp_path: Path) -> tuple[list[Any], list[Any]]:
    """What is built first, and the same with a drifted ``raw``, which two new artifacts read."""
    if kind == "adopted":
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        old, new = (ArtifactStep.adopt("raw", V, str(tmp_path / name)) for name in "ab")
    elif kind == "pinned":
        StepRunner().run([handle("other", 1)])
        pin = f"other/{V}"
        old, new = (handle("raw", size, pin=pin) for size in (1, 2))
    else:
        old, new = handle("raw", 1), handle("raw", 2)
    readers = [handle(name, sources=[new]) for name in ("one", "two")]
    return [old], [new, *readers]


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Python's warnings of drift since the last call, by logger."""

    def take() -> list[str]:
        found = [
            record.getMessage()
            for record in caplog.records
            if record.levelno == logging.WARNING and record.name.startswith("marin_dagster")
        ]
        caplog.clear()
        return [message for message in found if "drift: " in message]

    return take


def in_run_log(instance: dg.DagsterInstance) -> list[str]:
    """Warnings of drift in the logs of all runs."""
    return [
        entry.message
        for run in instance.get_runs()
        for entry in instance.all_logs(run.run_id)
        if entry.level == logging.WARNING and "drift: " in entry.message
    ]


KINDS = ["built", "adopted", "pinned"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", [True, False])
def test_a_run_in_dagster_warns_of_drift(
    known: bool,
    kind: str,
    tmp_path: Path,
    instance: dg.DagsterInstance,
    warned: Callable[[], list[str]],
) -> None:
    old, new = old_and_new(kind, tmp_path)
    with memory_instance() as elsewhere:
        StepRunner(instance=instance if known else elsewhere).run(old)
        if known and kind == "built":
            assert run_job(build_definitions(old), instance).success
    warned()

    assert run_job(build_definitions(new), instance).success

    for messages in (warned(), in_run_log(instance)):
        assert len(messages) == 1
        assert f"raw/{V} (" in messages[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_is_warned_of_drift(
    kind: str, tmp_path: Path, instance: dg.DagsterInstance, warned: Callable[[], list[str]]
) -> None:
    old, new = old_and_new(kind, tmp_path)
    StepRunner(instance=instance).run(old)
    warned()

    StepRunner(instance=instance).run(new)

    [message] = warned()
    assert f"raw/{V} (" in message
    assert len(in_run_log(instance)) == 1
    StepRunner(instance=instance).run([new[0]])
    assert len(warned()) == 1


@pytest.mark.parametrize("managed", ["root", "marin_dagster"])
def test_where_python_loggers_are_managed_the_run_is_warned_once(
    managed: str, tmp_path: Path, warned: Callable[[], list[str]]
) -> None:
    overrides = {"python_logs": {"managed_python_loggers": [managed]}}
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=overrides) as instance:
        StepRunner(instance=instance).run([handle("raw", 1)])
        warned()

        assert run_job(build_definitions([handle("raw", 2)]), instance).success

        assert len(warned()) == 1
        assert len(in_run_log(instance)) == 1


def test_a_user_of_the_cache_is_warned(warned: Callable[[], list[str]]) -> None:
    StepRunner().run([handle("raw", 1)])
    warned()

    assert isinstance(StepCache().begin(handle("raw", 2).lower()), Hit)

    [message] = warned()
    assert "size: 1 -> 2" in message
