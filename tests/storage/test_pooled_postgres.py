"""``PooledPostgresEventLogStorage``, on a real server, with and without PgBouncer before it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as db
from dagster_postgres.event_log import PostgresEventLogStorage

from helpers.postgres_server import PostgresServer, postgres_or_skip
from helpers.processes import free_port, running_process, wait_until
from helpers.runs import Recorder, run_job
from marin_dagster import build_definitions
from marin_dagster.storage import PooledPostgresEventLogStorage
from storage.test_pooled_sqlite import entry, event_types, texts


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_or_skip() as server:
        yield server


@pytest.fixture(scope="module")
def postgres(server: PostgresServer) -> str:
    return server.url


@pytest.fixture(scope="module")
def pgbouncer(postgres: str) -> Iterator[str]:
    """The server behind a proxy that gives each transaction another connection."""
    # Not pytest's folder: that is closed to the proxy's user.
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    url, port = db.make_url(postgres), free_port()
    folder.joinpath("users").write_text(f'"{url.username}" "{url.password}"\n')
    folder.joinpath("pgbouncer.ini").write_text(
        f"[databases]\npostgres = host={url.host} port={url.port} dbname=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = plain\n"
        f"auth_file = {folder / 'users'}\npool_mode = transaction\nunix_socket_dir =\n"
        "default_pool_size = 3\nlogfile =\n"
    )
    folder.chmod(0o755)
    command = ["pgbouncer", str(folder / "pgbouncer.ini")]
    if os.geteuid() == 0:  # which PgBouncer refuses
        command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
    proxied = url.set(port=port).render_as_string(hide_password=False)

    def is_ready() -> bool:
        engine = db.create_engine(proxied, poolclass=db.NullPool)
        try:
            with engine.connect():
                return True
        except db.exc.OperationalError:
            return False

    try:
        with running_process(command, folder / "log") as process:
            process.wait(is_ready)
            yield proxied
    finally:
        shutil.rmtree(folder)


@pytest.fixture(params=["postgres", "pgbouncer"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty event log, reached in both ways."""
    address: str = request.getfixturevalue(request.param)
    PostgresEventLogStorage.create_clean_storage(request.getfixturevalue("postgres")).dispose()
    return address


@pytest.fixture
def pooled(url: str) -> Iterator[PooledPostgresEventLogStorage]:
    storage = PooledPostgresEventLogStorage(url)
    yield storage
    storage.dispose()


def connections(postgres: str) -> int:
    engine = db.create_engine(postgres, poolclass=db.NullPool)
    with engine.connect() as connection:
        found = connection.execute(
            db.text("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
        )
        return len(found.fetchall()) - 1


def test_a_run_is_recorded_and_the_plain_storage_reads_it(
    url: str, tmp_path: Path, recorder: Recorder
) -> None:
    tmp_path.joinpath("dagster.yaml").write_text(
        "telemetry: {enabled: false}\nevent_log_storage:\n  module: marin_dagster.storage\n"
        f"  class: PooledPostgresEventLogStorage\n  config: {{postgres_url: '{url}'}}\n"
    )
    definitions = build_definitions([recorder.step("clean", recorder.step("raw"))])
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert isinstance(instance.event_log_storage, PooledPostgresEventLogStorage)
        first = run_job(definitions, instance)
        assert first.success
        recorder.take()
        assert run_job(definitions, instance).success
        assert recorder.take() == []
        types = event_types(instance, first.run_id)
        plain = PostgresEventLogStorage(url)
        assert [
            (log.dagster_event.event_type_value, log.step_key or "")
            for log in plain.get_logs_for_run(first.run_id)
            if log.dagster_event
        ] == types


def test_events_share_a_connection(postgres: str) -> None:
    PostgresEventLogStorage.create_clean_storage(postgres).dispose()
    before = connections(postgres)  # the proxy has some
    storage = PooledPostgresEventLogStorage(postgres)
    opened: list[Any] = []
    db.event.listen(storage._engine, "connect", lambda *_: opened.append(1))
    for number in range(20):
        storage.store_event(entry("run", str(number)))
    assert len(opened) == 1
    storage.dispose()
    wait_until(lambda: connections(postgres) <= before)


def test_writers_in_threads(pooled: PooledPostgresEventLogStorage) -> None:
    def write(who: int) -> None:
        for number in range(20):
            pooled.store_event(entry("run", f"{who}-{number}"))

    threads = [threading.Thread(target=write, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = texts(pooled, "run")
    assert len(found) == 160
    for who in range(8):
        mine = [text for text in found if text.startswith(f"{who}-")]
        assert mine == [f"{who}-{number}" for number in range(20)]


def test_connections_that_the_server_has_closed_are_replaced(
    pooled: PooledPostgresEventLogStorage, postgres: str
) -> None:
    pooled.store_event(entry("run", "before"))
    engine = db.create_engine(postgres, poolclass=db.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(
            db.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
        )
    pooled.store_event(entry("run", "after"))
    assert texts(pooled, "run") == ["before", "after"]


@pytest.mark.parametrize("by", ["run worker", "webserver"])
def test_a_server_that_restarts_is_connected_to_again(by: str, server: PostgresServer) -> None:
    PostgresEventLogStorage.create_clean_storage(server.url).dispose()
    storage = PooledPostgresEventLogStorage(server.url)
    if by == "webserver":
        storage.optimize_for_webserver(statement_timeout=5000, pool_recycle=60, max_overflow=20)
    storage.store_event(entry("run", "before"))
    server.stop()
    server.start()
    storage.store_event(entry("run", "after"))
    assert texts(storage, "run") == ["before", "after"]
    storage.dispose()


def test_the_webserver_s_settings_apply_to_the_kept_connections(postgres: str) -> None:
    storage = PooledPostgresEventLogStorage(postgres)
    storage.optimize_for_webserver(statement_timeout=5000, pool_recycle=60, max_overflow=20)
    opened: list[Any] = []
    db.event.listen(storage._engine, "connect", lambda *_: opened.append(1))
    for _ in range(3):
        with storage._connect() as connection:
            assert connection.execute(db.text("SHOW statement_timeout")).scalar() == "5s"
    assert len(opened) == 1
    storage.dispose()


def test_a_child_after_fork_has_connections_of_its_own(
    pooled: PooledPostgresEventLogStorage,
) -> None:
    pooled.store_event(entry("run", "before"))
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)
            pooled.store_event(entry("run", "child"))
            pooled.dispose()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    pooled.store_event(entry("run", "parent"))
    assert texts(pooled, "run") == ["before", "child", "parent"]


def test_without_dagster_postgres_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['dagster_postgres'] = None\n"
        "import marin_dagster.storage as storage\n"
        "try:\n    storage.PooledPostgresEventLogStorage\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'marin-dagster[postgres]'" in done.stdout
