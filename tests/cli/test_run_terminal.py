"""``marin-dagster run`` in a terminal: the live table, and Ctrl-C there and in a pipe."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.conftest import Project
from helpers.processes import wait_until

SLOW = """
import os, time
from pathlib import Path
from pipeline import step
from marin_dagster import StepSpec

def wait(output_path):
    print("half way")
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.05)

first = step("first")
slow = StepSpec("slow", deps=[first], fn=wait)
steps = [step("last", slow)]
"""
COMMAND = (sys.executable, "-m", "marin_dagster.cli", "run", "-g", "slow_graph.py:steps")


class Terminal:
    """A process in a terminal of 24 lines and 100 columns, and all that it wrote there."""

    def __init__(self, *command: str) -> None:
        self.master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )
        os.close(slave)
        self.raw = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                found = os.read(self.master, 65536)
            except OSError:
                return
            if not found:
                return
            self.raw += found.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """All text, without control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self) -> int:
        """Wait for the process and for the rest of its output."""
        code = self.process.wait(60)
        self._reader.join(60)
        return code


@pytest.fixture
def go(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (project.folder / "slow_graph.py").write_text(SLOW)
    monkeypatch.setenv("GO", str(tmp_path / "go"))
    return tmp_path / "go"


@contextmanager
def terminal(*command: str) -> Iterator[Terminal]:
    found = Terminal(*command)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()


def test_the_table_shows_running_steps_with_their_last_line_and_totals(
    go: Path, project: Project
) -> None:
    with terminal(*COMMAND) as shown:
        wait_until(lambda: re.search(r"running\s+slow_\w+\s+\d+:\d\d\s+half way", shown.text))
        assert re.search(r"built\s+first_\w+", shown.text)
        assert re.search(r"1/3\s+1 built, 1 running, 1 to come", shown.text)
        go.touch()
        assert shown.end() == 0
    assert re.search(r"3/3\s+3 built, 0 to come", shown.text)
    assert "3 steps: 3 built; " in shown.text
    assert "\x1b[32mbuilt" in shown.raw  # green
    # The cursor is visible again.
    assert shown.raw.rindex("\x1b[?25h") > shown.raw.rindex("\x1b[?25l")


def test_no_color(go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go.touch()
    with terminal("env", "NO_COLOR=1", *COMMAND) as shown:
        assert shown.end() == 0
    assert re.search(r"built\s+first_\w+", shown.text)
    assert not re.search(r"\x1b\[3[0-9]m", shown.raw)


@pytest.mark.parametrize("in_terminal", [True, False])
def test_ctrl_c_stops_the_steps_and_says_what_is_left(
    in_terminal: bool, go: Path, project: Project, store: Path
) -> None:
    if in_terminal:
        with terminal(*COMMAND) as shown:
            wait_until(lambda: "half way" in shown.text)
            shown.type("\x03")
            code, text = shown.end(), shown.text
    else:
        process = subprocess.Popen(
            COMMAND, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        wait_until(lambda: list(store.glob("slow_*/.executor_status.lock")))
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
        code = process.returncode

    assert code == 130, text
    left = text.partition("Interrupted. The next run builds what is left:")[2]
    assert re.search(r"slow_\w+ \(stopped\)\s+last_\w+ \(not run\)", left)
    assert "3 steps: 1 built, 1 stopped, 1 not run; " in left
    assert "Traceback" not in text
    [slow] = store.glob("slow_*")
    assert not (slow / ".executor_status.lock").exists()
    assert (slow / ".executor_status").read_text() == "FAILED"
    go.touch()
    project.took()
    assert project("run", "-g", "slow_graph.py:steps").code == 0
    assert project.took() == ["last"]
