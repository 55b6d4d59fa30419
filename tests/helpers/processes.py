"""Other processes: servers that tests start, ports for them, and waiting for what they do."""

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GUARD_S = 120.0
"""Longest wait for something that must happen; only a deadlock ever takes so long."""


def wait_until(
    holds: Callable[[], Any], what: str = "what the test expects", every_s: float = 0.02
) -> None:
    """Wait until ``holds()`` is true; ask every so many seconds.

    Raises:
        TimeoutError: it is not, two minutes later.
    """
    deadline = time.monotonic() + GUARD_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {GUARD_S:.0f} s for {what}")
        time.sleep(every_s)


def answers(url: str) -> bool:
    """Whether there is a web server."""
    try:
        urllib.request.urlopen(url, timeout=2).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port of the loopback interface where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def is_dead(pid: int) -> bool:
    """Whether a process has gone, or is a zombie that nobody has waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in ("Z", "X")


@dataclass(frozen=True)
class Process:
    """A server that was started."""

    popen: "subprocess.Popen[bytes]"
    log: Path

    def wait(self, answers: Callable[[], bool]) -> None:
        """Wait until it answers."""
        what = f"{self.popen.args} to answer"
        wait_until(lambda: self.popen.poll() is not None or answers(), what)
        if self.popen.poll() is not None:
            raise RuntimeError(f"{self.popen.args} ended:\n{self.log.read_text()}")


@contextmanager
def running_process(
    command: Sequence[str], log: Path, *, folder: Path | None = None, **variables: str
) -> Iterator[Process]:
    """Start a server in a process group of its own, and stop all of it afterwards.

    Args:
        command: its command line.
        log: file for what it writes.
        folder: where the command is given; by default, here.
        variables: more environment variables.
    """
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Process(server, log)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGINT)
        try:
            # Runs and the daemon end at once; the webserver would take a quarter of a minute.
            server.wait(timeout=4)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
