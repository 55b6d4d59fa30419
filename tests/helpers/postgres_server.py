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


@contextmanager
def postgres_server() -> Iterator[str]:
    """A server with an empty database; yields the database's URL.

    Raises:
        Unavailable: PostgreSQL is not installed here.
    """
    programs = _programs()
    # Not pytest's folder: that is closed to PostgreSQL's user.
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    as_user: dict[str, Any] = {"cwd": folder}
    if os.geteuid() == 0:  # which PostgreSQL refuses
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    data, log, password = folder / "data", folder / "log", secrets.token_hex(8)
    port = free_port()
    try:
        secret = folder / "password"
        secret.write_text(password)
        secret.chmod(0o644)
        subprocess.run(
            [
                *(programs / "initdb", "--pgdata", data, "--username=dagster", "--no-sync"),
                *("--auth=scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8", "--locale=C"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            **as_user,
        )
        options = (f"--{name}={value}" for name, value in SETTINGS.items())
        with log.open("wb") as output:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, f"--port={port}", *options],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **as_user,
            )
        ready = [programs / "pg_isready", "--quiet", "--host=127.0.0.1", f"--port={port}"]
        try:
            wait_until(
                lambda: server.poll() is not None or subprocess.run(ready).returncode == 0,
                "PostgreSQL to answer",
            )
            if server.poll() is not None:
                raise RuntimeError(f"PostgreSQL ended:\n{log.read_text()}")
            yield f"postgresql+psycopg2://dagster:{password}@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # SIGTERM would wait until the last client leaves
            server.wait(timeout=60)
    finally:
        shutil.rmtree(folder)


@contextmanager
def postgres_or_skip() -> Iterator[str]:
    """:func:`postgres_server` for a fixture: where there is none, its tests are skipped, and in CI
    they fail."""
    try:
        _programs()
    except Unavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    with postgres_server() as url:
        yield url


def _programs() -> Path:
    found = sorted(PROGRAMS.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if not found:
        raise Unavailable("PostgreSQL is not installed; scripts/install-debian installs it")
    return found[-1].parent
