"""A real PostgreSQL server with its data in a folder of its own, as long as tests need it."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.processes import free_port, wait_until

PROGRAMS = Path("/usr/lib/postgresql")
"""Where Debian has the programs of each version."""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # The data is thrown away, so nothing is lost when the machine goes down.
    "fsync": "off",
}


class Unavailable(Exception):
    """Why there is no PostgreSQL here."""


class PostgresServer:
    """A server with an empty database, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        """Make the database.

        Raises:
            Unavailable: PostgreSQL is not installed here.
        """
        self._folder = folder
        self._programs = _programs()
        self._as_user: dict[str, Any] = {"cwd": folder}
        if os.geteuid() == 0:  # which PostgreSQL refuses
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            self._as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        password, self._port = secrets.token_hex(8), free_port()
        self.url = f"postgresql+psycopg2://dagster:{password}@127.0.0.1:{self._port}/postgres"
        secret = folder / "password"
        secret.write_text(password)
        secret.chmod(0o644)
        initdb = self._programs / "initdb"
        subprocess.run(
            [
                *(initdb, "--pgdata", folder / "data", "--username=dagster", "--no-sync"),
                *("--auth=scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8", "--locale=C"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            **self._as_user,
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = (f"--{name}={value}" for name, value in SETTINGS.items())
        log, data = self._folder / "log", self._folder / "data"
        with log.open("ab") as output:
            server = subprocess.Popen(
                [self._programs / "postgres", "-D", data, f"--port={self._port}", *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._as_user,
            )
        self._process = server
        ready = [self._programs / "pg_isready", "--quiet", "--host=127.0.0.1"]
        ready = [*ready, f"--port={self._port}"]
        wait_until(
            lambda: server.poll() is not None or subprocess.run(ready).returncode == 0,
            "PostgreSQL to answer",
        )
        if server.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended:\n{log.read_text()}")

    def stop(self) -> None:
        """Stop, whoever is connected."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # SIGTERM would wait for the last client
            self._process.wait(timeout=60)
            self._process = None


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server that has started.

    Raises:
        Unavailable: PostgreSQL is not installed here.
    """
    # Not pytest's folder: that is closed to PostgreSQL's user.
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    try:
        server = PostgresServer(folder)
        try:
            server.start()
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


@contextmanager
def postgres_or_skip() -> Iterator[PostgresServer]:
    """:func:`postgres_server` for a fixture: where there is none, its tests are skipped, and in CI
    they fail."""
    try:
        _programs()
    except Unavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    with postgres_server() as server:
        yield server


def _programs() -> Path:
    found = sorted(PROGRAMS.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if not found:
        raise Unavailable("PostgreSQL is not installed; scripts/install-debian installs it")
    return found[-1].parent
