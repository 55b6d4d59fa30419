"""``PooledSqliteEventLogStorage``: the files of Dagster's own storage, with connections kept."""

import logging
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.execution.plan.state import KnownExecutionState

from helpers.processes import wait_until
from helpers.runs import Recorder, run_job, stale_status
from marin_dagster import StepSpec, build_definitions
from marin_dagster._compat import EventLogEntry
from marin_dagster._compat_storage import SqliteEventLogStorage
from marin_dagster.storage import PooledSqliteEventLogStorage

KINDS: dict[str, type[SqliteEventLogStorage]] = {
    "plain": SqliteEventLogStorage,
    "pooled": PooledSqliteEventLogStorage,
}
BOTH_ORDERS = pytest.mark.parametrize(
    ("writer", "reader"), [("plain", "pooled"), ("pooled", "plain"), ("pooled", "pooled")]
)
NAMES = ("raw", "clean", "model")
SPAWN = multiprocessing.get_context("spawn")


def instance_at(home: Path, kind: str = "pooled") -> dg.DagsterInstance:
    """An instance of a folder; its event log is of a kind."""
    home.mkdir(parents=True, exist_ok=True)
    lines = ["telemetry: {enabled: false}"]
    if kind == "pooled":
        lines += [
            "event_log_storage:",
            "  module: marin_dagster.storage",
            "  class: PooledSqliteEventLogStorage",
            f"  config: {{base_dir: {home / 'history' / 'runs'}}}",
        ]
    home.joinpath("dagster.yaml").write_text("\n".join(lines))
    return dg.DagsterInstance.from_config(str(home))


def entry(run_id: str, text: str) -> EventLogEntry:
    return EventLogEntry(
        error_info=None,
        level=logging.INFO,
        user_message=text,
        run_id=run_id,
        timestamp=time.time(),
        dagster_event=None,
    )


def texts(storage: SqliteEventLogStorage, run_id: str) -> list[str]:
    return [found.user_message for found in storage.get_logs_for_run(run_id)]


def event_types(instance: dg.DagsterInstance, run_id: str) -> list[tuple[str, str]]:
    """The run's events, in order, each with its step."""
    return [
        (log.dagster_event.event_type_value, log.step_key or "")
        for log in instance.all_logs(run_id)
        if log.dagster_event
    ]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "dagster"


@pytest.fixture
def pooled(tmp_path: Path) -> Iterator[PooledSqliteEventLogStorage]:
    storage = PooledSqliteEventLogStorage(str(tmp_path / "runs"))
    yield storage
    storage.dispose()


def open_files(folder: Path) -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        if target.startswith(str(folder)):
            found.append(target)
    return found


def test_dagster_yaml_chooses_it(home: Path) -> None:
    with instance_at(home) as instance:
        assert isinstance(instance.event_log_storage, PooledSqliteEventLogStorage)
        # Run workers get the instance as such a reference.
        with dg.DagsterInstance.from_ref(instance.get_ref()) as again:
            assert isinstance(again.event_log_storage, PooledSqliteEventLogStorage)


def test_by_default_it_takes_dagster_s_own_files(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with instance_at(home, "plain") as instance:
        instance.event_log_storage.store_event(entry("run", "old"))
    lines = "event_log_storage: {module: marin_dagster.storage, class: PooledSqliteEventLogStorage}"
    home.joinpath("dagster.yaml").write_text(lines)
    with pytest.raises(ValueError, match="set base_dir in its config"):
        dg.DagsterInstance.from_config(str(home)).event_log_storage  # noqa: B018

    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        storage = instance.event_log_storage
        assert isinstance(storage, PooledSqliteEventLogStorage)
        assert texts(storage, "run") == ["old"]


@BOTH_ORDERS
def test_both_kinds_read_and_go_on_with_the_same_files(
    writer: str, reader: str, home: Path, recorder: Recorder
) -> None:
    raw = recorder.step("raw")
    definitions = build_definitions([recorder.step("clean", raw)])
    with instance_at(home, writer) as instance:
        first = run_job(definitions, instance)
        assert first.success
        written = event_types(instance, first.run_id)

    with instance_at(home, reader) as instance:
        assert event_types(instance, first.run_id) == written
        run = instance.get_run_by_id(first.run_id)
        assert run is not None
        assert run.status is dg.DagsterRunStatus.SUCCESS
        recorder.take()
        assert run_job(definitions, instance).success
        assert recorder.take() == []
        (record,) = instance.get_asset_records([dg.AssetKey("raw")])
        assert record.asset_entry.last_materialization_record


def _life(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Dagster has recorded, calls stale and would resume, after a build that fails, its retry,
    a hit, a removed output and a change."""
    monkeypatch.setenv("MARIN_PREFIX", str(folder / "store"))
    recorder = Recorder()
    seen: list[Any] = []

    def note(run: Any, instance: dg.DagsterInstance, definitions: dg.Definitions) -> None:
        stored = instance.get_run_by_id(run.run_id)
        assert stored is not None
        statuses = {
            stats.step_key: stats.status for stats in instance.get_run_step_stats(run.run_id)
        }
        seen.append((stored.status, sorted(statuses.items(), key=str), recorder.take()))
        seen.append(sorted(event_types(instance, run.run_id)))
        for name in NAMES:
            (record,) = instance.get_asset_records([dg.AssetKey(name)])
            last = record.asset_entry.last_materialization
            tags = (last.tags or {}) if last else {}
            seen.append({key: value for key, value in tags.items() if "version" in key})
        seen.append([stale_status(definitions, instance, name) for name in NAMES])
        with suppress(dg.DagsterInvariantViolationError):  # nothing has failed
            seen.append(KnownExecutionState.build_resume_retry_reexecution(instance, stored)[0])

    broken = True

    def train(output_path: str) -> None:
        if broken:
            raise RuntimeError("out of luck")

    with instance_at(folder / "dagster", kind) as instance:
        raw = recorder.step("raw")
        clean = recorder.step("clean", raw)
        model = StepSpec("model", deps=[clean], fn=train)
        definitions = build_definitions([model])
        note(run_job(definitions, instance), instance, definitions)
        broken = False
        note(run_job(definitions, instance), instance, definitions)
        note(run_job(definitions, instance), instance, definitions)
        shutil.rmtree(clean.output_path)
        note(run_job(definitions, instance), instance, definitions)
        changed = recorder.step("raw", hash_attrs={"rows": 2})
        clean = recorder.step("clean", changed)
        definitions = build_definitions([StepSpec("model", deps=[clean], fn=train)])
        seen.append([stale_status(definitions, instance, name) for name in NAMES])
        note(run_job(definitions, instance, select=["raw"]), instance, definitions)
    return seen


def test_events_statuses_and_versions_are_those_of_the_plain_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = {kind: _life(kind, tmp_path / kind, monkeypatch) for kind in KINDS}
    assert lives["pooled"] == lives["plain"]
    # What is compared contains the cases that matter.
    assert ["STALE", "STALE", "STALE"] in lives["plain"]
    assert ["FRESH", "STALE", "STALE"] in lives["plain"]
    assert {"model"} in [set(one) for one in lives["plain"] if isinstance(one, list)]


def _write(kind: str, base_dir: str, run_id: str, who: str, count: int) -> None:
    storage = KINDS[kind](base_dir)
    for number in range(count):
        storage.store_event(entry(run_id, f"{who}-{number}"))
    storage.dispose()


def test_writers_in_processes_of_both_kinds(tmp_path: Path) -> None:
    base_dir = str(tmp_path / "runs")
    SqliteEventLogStorage(base_dir).dispose()
    writers = [
        SPAWN.Process(target=_write, args=(kind, base_dir, "run", f"{kind}{index}", 60))
        for index in range(2)
        for kind in KINDS
    ]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0] * 4

    expected = sorted(
        f"{kind}{index}-{number}" for index in range(2) for kind in KINDS for number in range(60)
    )
    for kind in KINDS.values():
        storage = kind(base_dir)
        assert sorted(texts(storage, "run")) == expected
        storage.dispose()


def test_writers_in_threads(pooled: PooledSqliteEventLogStorage) -> None:
    def write(who: int) -> None:
        for number in range(50):
            pooled.store_event(entry(f"run{who % 3}", f"{who}-{number}"))

    threads = [threading.Thread(target=write, args=(who,)) for who in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for run in range(3):
        found = texts(pooled, f"run{run}")
        assert len(found) == 100
        for who in (run, run + 3):  # each in its own order
            assert [text for text in found if text.startswith(f"{who}-")] == [
                f"{who}-{number}" for number in range(50)
            ]


WRITES_FOR_EVER = """
    import itertools, sys
    sys.path[:0] = sys.argv[3:]
    from storage.test_pooled_sqlite import entry
    from marin_dagster.storage import PooledSqliteEventLogStorage

    storage = PooledSqliteEventLogStorage(sys.argv[1])
    for number in itertools.count():
        storage.store_event(entry("run", str(number)))
        print(number, flush=True)
"""


def test_what_was_stored_survives_kill_9(tmp_path: Path) -> None:
    base_dir = tmp_path / "runs"
    report = tmp_path / "stored"
    with report.open("w") as stored:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", textwrap.dedent(WRITES_FOR_EVER)),
                *(str(base_dir), "", str(Path(__file__).parents[1])),
            ],
            stdout=stored,
        )
        wait_until(lambda: report.read_text().count("\n") > 30)
        process.send_signal(signal.SIGKILL)
        process.wait()
    stored_before = report.read_text().split("\n")[:-1]

    for kind in KINDS.values():
        storage = kind(str(base_dir))
        found = texts(storage, "run")
        assert found[: len(stored_before)] == stored_before
        assert len(found) <= len(stored_before) + 1
        storage.store_event(entry("run", "after"))
        assert texts(storage, "run")[-1] == "after"
        storage.dispose()
        # Neither leaves the next one its own last event.
        with sqlite3.connect(base_dir / "run.db") as connection:
            connection.execute("DELETE FROM event_logs WHERE event LIKE '%\"after\"%'")


def test_a_reader_in_another_process_sees_each_event_at_once(
    pooled: PooledSqliteEventLogStorage, tmp_path: Path
) -> None:
    reads = (
        "import sys; from dagster._core.storage.event_log import SqliteEventLogStorage as S\n"
        "s = S(sys.argv[1])\n"
        "for run_id in sys.stdin:\n"
        "    print(len(s.get_logs_for_run(run_id.strip())), flush=True)\n"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", reads, str(tmp_path / "runs")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdin
    assert reader.stdout
    for number in range(5):
        pooled.store_event(entry("run", str(number)))
        reader.stdin.write("run\n")
        reader.stdin.flush()
        assert int(reader.stdout.readline()) == number + 1
    reader.stdin.close()
    assert reader.wait() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_waits_for_a_run_s_events_gets_them(
    kind: str, pooled: PooledSqliteEventLogStorage, tmp_path: Path
) -> None:
    seen: list[str] = []
    pooled.store_event(entry("run", "first"))
    watcher = KINDS[kind](str(tmp_path / "runs"))  # the UI's server, for one
    watcher.watch("run", None, lambda found, _: seen.append(found.user_message))
    for number in range(5):
        pooled.store_event(entry("run", str(number)))
        wait_until(lambda number=number: str(number) in seen)
    assert seen == ["first", *map(str, range(5))]
    watcher.dispose()


def test_few_files_stay_open(pooled: PooledSqliteEventLogStorage, tmp_path: Path) -> None:
    for number in range(60):
        pooled.store_event(entry(f"run{number}", "text"))
    kept = {path.removesuffix("-wal").removesuffix("-shm") for path in open_files(tmp_path)}
    assert len(kept) <= 16
    assert texts(pooled, "run3") == ["text"]

    pooled.dispose()
    assert open_files(tmp_path) == []


def test_an_event_costs_no_connection(
    pooled: PooledSqliteEventLogStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    real = sqlite3.connect
    pooled.store_event(entry("run", "first"))
    monkeypatch.setattr(
        sqlite3.dbapi2,
        "connect",
        lambda *args, **options: made.append(args) or real(*args, **options),
    )
    for number in range(10):
        pooled.store_event(entry("run", str(number)))
    assert made == []
    pooled.store_event(entry("other", "first"))
    assert made


def test_a_deleted_run_stays_deleted(pooled: PooledSqliteEventLogStorage, tmp_path: Path) -> None:
    pooled.store_event(entry("run", "old"))
    pooled.delete_events("run")
    assert not [path for path in open_files(tmp_path) if "/run.db" in path]
    assert texts(pooled, "run") == []


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_file_that_another_process_deletes(
    made_anew: bool, pooled: PooledSqliteEventLogStorage, tmp_path: Path
) -> None:
    pooled.store_event(entry("run", "old"))
    for path in (tmp_path / "runs").glob("run.db*"):
        path.unlink()
    if made_anew:
        _write("plain", str(tmp_path / "runs"), "run", "other", 1)

    pooled.store_event(entry("run", "new"))

    expected = ["other-0", "new"] if made_anew else ["new"]
    assert texts(pooled, "run") == expected
    plain = SqliteEventLogStorage(str(tmp_path / "runs"))
    assert texts(plain, "run") == expected


def test_wipe(pooled: PooledSqliteEventLogStorage, tmp_path: Path) -> None:
    pooled.store_event(entry("run", "old"))
    pooled.wipe()
    assert texts(pooled, "run") == []
    pooled.store_event(entry("run", "new"))
    assert texts(pooled, "run") == ["new"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_after_fork_has_connections_of_its_own(kind: str, tmp_path: Path) -> None:
    storage = KINDS[kind](str(tmp_path / "runs"))
    storage.store_event(entry("run", "before"))

    child = os.fork()
    if child == 0:
        try:
            storage.store_event(entry("run", "child"))
            storage.dispose()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    storage.store_event(entry("run", "parent"))

    assert texts(storage, "run") == ["before", "child", "parent"]
    storage.dispose()


def test_a_fork_while_another_thread_writes(pooled: PooledSqliteEventLogStorage) -> None:
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            pooled.store_event(entry("run", "thread"))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(30)  # a lock that is held for ever
                pooled.store_event(entry("run", "child"))
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        writer.join()
    assert texts(pooled, "run").count("child") == 10


def test_a_write_that_fails_leaves_nothing_and_the_next_one_works(
    pooled: PooledSqliteEventLogStorage,
) -> None:
    pooled.store_event(entry("run", "first"))

    def fail() -> None:
        with pooled.run_connection("run") as connection:
            connection.execute(pooled.prepare_insert_event(entry("run", "half")))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert texts(pooled, "run") == ["first"]
    pooled.store_event(entry("run", "second"))
    assert texts(pooled, "run") == ["first", "second"]


def test_a_busy_file_is_waited_for(pooled: PooledSqliteEventLogStorage, tmp_path: Path) -> None:
    pooled.store_event(entry("run", "first"))
    other = sqlite3.connect(tmp_path / "runs" / "run.db", check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    written = threading.Event()

    def write() -> None:
        pooled.store_event(entry("run", "second"))
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not written.wait(0.5)
    other.rollback()
    thread.join()
    assert texts(pooled, "run") == ["first", "second"]
    other.close()


OLD_REVISION = "5771160a95ad"


def test_an_old_schema_is_upgraded(home: Path) -> None:
    with instance_at(home, "plain") as instance:
        instance.event_log_storage.store_event(entry("run", "old"))
    files = list((home / "history" / "runs").glob("*.db"))
    for path in files:
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (OLD_REVISION,))
    with instance_at(home) as instance:
        storage = instance.event_log_storage
        assert isinstance(storage, PooledSqliteEventLogStorage)
        assert texts(storage, "run") == ["old"]
        assert storage.alembic_version()[0] == OLD_REVISION

        storage.upgrade()

        current, head = storage.alembic_version()
        assert current == head
        storage.store_event(entry("run", "new"))
        assert texts(storage, "run") == ["old", "new"]


def _planned(instance: dg.DagsterInstance, definitions: dg.Definitions) -> list[tuple[str, str]]:
    job = definitions.resolve_job_def("materialize_steps")
    run = instance.create_run_for_job(
        job, asset_selection=frozenset(job.asset_layer.executable_asset_keys)
    )
    return sorted(event_types(instance, run.run_id))


def test_planned_events_in_a_batch(
    home: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = build_definitions([recorder.step(f"s{number}") for number in range(5)])
    with instance_at(home) as instance:
        single = _planned(instance, definitions)
        batches: list[int] = []
        real = PooledSqliteEventLogStorage.store_event_batch

        def count(self: PooledSqliteEventLogStorage, events: Any) -> None:
            batches.append(len(events))
            real(self, events)

        monkeypatch.setattr(PooledSqliteEventLogStorage, "store_event_batch", count)
        monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", "500")
        assert _planned(instance, definitions) == single
        assert batches == [10]  # an asset and its check for each step
        for record in instance.get_asset_records():
            assert record.asset_entry.last_run_id


def test_a_batch_that_fails_is_stored_wholly_or_not_at_all(
    pooled: PooledSqliteEventLogStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooled.store_event(entry("run", "first"))
    real = SqliteEventLogStorage.store_event

    def fail_at_last(self: SqliteEventLogStorage, event: EventLogEntry) -> None:
        if event.user_message == "3":
            raise sqlite3.OperationalError("disk full, on purpose")
        real(self, event)

    monkeypatch.setattr(SqliteEventLogStorage, "store_event", fail_at_last)
    with pytest.raises(sqlite3.OperationalError):
        pooled.store_event_batch([entry("run", str(number)) for number in range(4)])
    monkeypatch.undo()
    assert texts(pooled, "run") == ["first"]
