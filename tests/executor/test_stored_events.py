"""The events of a run as the storage has them, which a thread of their own stores in batches."""

import os
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.event_log import SqliteEventLogStorage

from helpers.runs import Recorder, Run, run_job
from marin_dagster import StepSpec, build_definitions
from marin_dagster._compat_storage import CAN_STORE_TOGETHER
from marin_dagster.assets import step_op
from marin_dagster.assets.cache_integrity_check import CHECK_NAME

PLANNED = "ASSET_MATERIALIZATION_PLANNED"
CHECK = ["ASSET_CHECK_EVALUATION_PLANNED"]
BUILT = [
    "STEP_START",
    None,  # why it runs, or what serves it
    "STEP_OUTPUT",
    "ASSET_MATERIALIZATION",
    "HANDLED_OUTPUT",
]


STORAGES = {
    "plain": "",
    "pooled": "event_log_storage:\n"
    "  module: marin_dagster.storage\n"
    "  class: PooledSqliteEventLogStorage\n",
}


@pytest.fixture(params=STORAGES)
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an instance with Dagster's own storage on SQLite, or with ours."""
    folder = tmp_path / "home"
    folder.mkdir()
    settings = "telemetry: {enabled: false}\n" + STORAGES[request.param]
    (folder / "dagster.yaml").write_text(settings)
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    return folder


@pytest.fixture
def sqlite(home: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance


def stored(instance: dg.DagsterInstance, run_id: str, step: str) -> list[str | None]:
    """The types of a step's stored events, in order; None for a line of the log."""
    return [
        entry.dagster_event_type.value if entry.dagster_event_type else None
        for entry in instance.all_logs(run_id)
        if entry.step_key == step
    ]


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("outcome", ["built", "found", "known", "pruned"])
def test_which_events_are_stored_for_a_step(
    outcome: str, checks: bool, recorder: Recorder, sqlite: dg.DagsterInstance
) -> None:
    step = recorder.step("step")
    definitions = build_definitions([recorder.step("reader", step)], checks=checks)
    if outcome == "found":
        with dg.DagsterInstance.ephemeral() as elsewhere:
            assert run_job(definitions, elsewhere).success
    elif outcome != "built":
        assert run_job(definitions, sqlite).success
    if outcome == "pruned":
        shutil.rmtree(step.output_path)

    run = run_job(definitions, sqlite)

    planned = [PLANNED, *(CHECK if checks else [])]
    evaluated = ["ASSET_CHECK_EVALUATION"] if checks else []
    output = ["STEP_OUTPUT"] if checks else []
    assert (
        stored(sqlite, run.run_id, "step")
        == {
            "built": [*planned, *BUILT, *output, *evaluated, "STEP_SUCCESS"],
            "found": [*planned, *BUILT, *output, *evaluated, "STEP_SUCCESS"],
            "known": [*planned, "STEP_START", "ASSET_OBSERVATION", *evaluated, "STEP_SUCCESS"],
            "pruned": [*planned, "STEP_SKIPPED", *evaluated],
        }[outcome]
    )


def test_each_step_keeps_the_order_of_its_events_and_loses_none(
    recorder: Recorder, sqlite: dg.DagsterInstance
) -> None:
    steps = [recorder.step(f"step_{number}") for number in range(40)]
    listened: list[Any] = []
    definitions = build_definitions(steps)
    job = definitions.resolve_job_def("materialize_steps")
    recorded = sqlite.create_run_for_job(job)
    sqlite.add_event_listener(recorded.run_id, listened.append)

    run = execute(job, recorded, sqlite)

    assert run.success
    entries = sqlite.all_logs(recorded.run_id)
    for step in steps:
        mine = [event for event in run.all_events if event.step_key == step.name]
        types = stored(sqlite, recorded.run_id, step.name)
        assert [kind for kind in types if kind and "PLANNED" not in kind] == [
            event.event_type_value for event in mine
        ]
    steps_of = Counter(entry.step_key for entry in listened)
    planned = Counter(entry.step_key for entry in entries if "PLANNED" in str(entry))
    assert steps_of == Counter(entry.step_key for entry in entries) - planned


def execute(job: dg.JobDefinition, run: dg.DagsterRun, instance: dg.DagsterInstance) -> Any:
    from dagster._core.definitions.job_base import InMemoryJob
    from dagster._core.execution.api import execute_run

    return execute_run(InMemoryJob(job), run, instance)


def die(*arguments: Any) -> Any:
    """End the process as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_later(*arguments: Any) -> Any:
    """End the process once events that nobody waits for are stored, too."""
    time.sleep(1.0)
    die()


def die_in_check(output_path: str) -> None:
    """Let the check of this step end the process."""
    step_op.evaluate = die_later  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("function", "checks", "left"),
    [
        (die, False, [PLANNED, "STEP_START", None]),
        (die_in_check, True, [PLANNED, *CHECK, *BUILT]),
    ],
)
def test_what_a_killed_worker_has_reported_is_stored(
    function: Callable[[str], Any], checks: bool, left: list[str | None], home: Path
) -> None:
    worker = os.fork()
    if worker == 0:
        try:
            before = StepSpec("before", fn=lambda output_path: None)
            step = StepSpec("dies", deps=[before], fn=function)
            with dg.DagsterInstance.from_config(str(home)) as instance:
                run_job(build_definitions([step], checks=checks), instance)
        finally:
            os._exit(1)
    _, status = os.waitpid(worker, 0)

    assert os.WTERMSIG(status) == signal.SIGKILL
    with dg.DagsterInstance.from_config(str(home)) as instance:
        [run] = instance.get_runs()
        assert stored(instance, run.run_id, "dies") == left
        assert stored(instance, run.run_id, "before")[-1] == "STEP_SUCCESS"


@pytest.mark.parametrize("home", ["plain"], indirect=True)
def test_checks_of_served_steps_open_no_connections_of_their_own(
    recorder: Recorder, sqlite: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Dagster's storage, a connection and its commit are most of what an event costs."""
    if not CAN_STORE_TOGETHER:
        pytest.skip("this release stores events one by one")
    steps = [recorder.step(f"step_{number}") for number in range(20)]
    opened: list[str] = []
    connect = SqliteEventLogStorage._connect

    def count(storage: Any, shard: str) -> Any:
        opened.append(shard)
        return connect(storage, shard)

    monkeypatch.setattr(SqliteEventLogStorage, "_connect", count)
    counts: dict[bool, int] = {}
    for checks in (False, True):
        job = build_definitions(steps, checks=checks).resolve_job_def("materialize_steps")
        assert execute(job, sqlite.create_run_for_job(job), sqlite).success
        recorded = sqlite.create_run_for_job(job)
        opened.clear()
        assert execute(job, recorded, sqlite).success
        counts[checks] = len(opened)
        found = sqlite.all_logs(recorded.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
        assert len(found) == (len(steps) if checks else 0)

    assert counts[True] - counts[False] < 10


@pytest.mark.parametrize("kind", ["ASSET_MATERIALIZATION", "ASSET_CHECK_EVALUATION"])
@pytest.mark.parametrize("where", ["index", "run"])
def test_an_event_that_cannot_be_stored_fails_its_step_alone(
    where: str, kind: str, recorder: Recorder, home: Path, sqlite: dg.DagsterInstance
) -> None:
    steps = [recorder.step(f"step_{number}") for number in range(8)]
    job = build_definitions(steps).resolve_job_def("materialize_steps")
    recorded = sqlite.create_run_for_job(job)
    file = home / "history" / "runs" / f"{recorded.run_id if where == 'run' else 'index'}.db"
    broken = (
        f"INSERT ON event_logs WHEN NEW.step_key = 'step_3' AND NEW.dagster_event_type = '{kind}'"
    )
    if (where, kind) == ("index", "ASSET_CHECK_EVALUATION"):
        # Not every release has these events in the index, but all have their results.
        broken = "UPDATE ON asset_check_executions WHEN NEW.asset_key LIKE '%step_3%'"
    with closing(sqlite3.connect(file)) as database:
        database.execute(
            f"CREATE TRIGGER broken BEFORE {broken} "
            "BEGIN SELECT RAISE(ABORT, 'cannot store this'); END"
        )

    result = execute(job, recorded, sqlite)

    assert not result.success
    run = Run(False, list(result.all_events), recorded.run_id)
    assert run.steps("STEP_FAILURE") == ["step_3"]
    assert "cannot store this" in run.error("step_3")
    for step in steps:
        key = dg.AssetKey(step.name)
        events = sqlite.fetch_materializations(key, limit=10).records
        lost = step.name == "step_3" and kind == "ASSET_MATERIALIZATION"
        assert len(events) == (0 if lost else 1)
        check = dg.AssetCheckKey(key, CHECK_NAME)
        [record] = sqlite.event_log_storage.get_asset_check_execution_history(check, limit=10)
        lost = step.name == "step_3" and kind == "ASSET_CHECK_EVALUATION"
        assert record.status.value == ("PLANNED" if lost else "SUCCEEDED")


def test_a_failed_report_of_served_steps_fails_the_run(
    recorder: Recorder, home: Path, sqlite: dg.DagsterInstance
) -> None:
    definitions = build_definitions([recorder.step("known")], checks=False)
    assert run_job(definitions, sqlite).success
    with closing(sqlite3.connect(home / "history" / "runs" / "index.db")) as database:
        database.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON event_logs WHEN "
            "NEW.dagster_event_type = 'ASSET_OBSERVATION' "
            "BEGIN SELECT RAISE(ABORT, 'cannot store this'); END"
        )

    assert not run_job(definitions, sqlite).success
