"""A real Iris controller on loopback, whose workers are processes of this machine."""

import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from helpers.processes import free_port, is_dead, wait_until

_CONFIG = """
name: test
platform: {{label_prefix: iris, local: {{}}}}
controller: {{local: {{port: {port}}}}}
scale_groups:
  local-cpu:
    buffer_slices: 1
    max_slices: 1
    num_vms: 1
    slice_template: {{local: {{}}}}
    resources:
      cpu_millicores: 8000
      memory_bytes: 17179869184
      disk_bytes: 100000000000
      device_type: cpu
      capacity_type: on-demand
defaults:
  autoscaler:
    evaluation_interval: {{milliseconds: 500}}
    scale_up_delay: {{milliseconds: 1000}}
    scale_down_delay: {{milliseconds: 1000}}
"""


@dataclass
class IrisServer:
    """A controller that can be started, killed and started again under one address."""

    folder: Path
    """Its home, its temporary files and its log."""
    port: int
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Where Fray's client finds it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What the controller has written."""
        return (self.folder / "controller.log").read_text(errors="replace")

    def start(self) -> None:
        """Start it, and wait until it takes jobs."""
        config = self.folder / "iris.yaml"
        config.write_text(_CONFIG.format(port=self.port))
        for name in ("home", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
        }
        program = str(Path(sys.executable).with_name("iris"))
        with (self.folder / "controller.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, "--config", str(config), "cluster", "start"],
                # The checkout is not to be found by chance: workers import what is installed.
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._ready, "the Iris controller to answer")

    def kill(self) -> None:
        """Let it die without notice, with its workers and their jobs."""
        process = self._process
        assert process is not None
        # Each job's process is a session of its own, so that the group is not all of it.
        doomed = _descendants(process.pid)
        for pid in (process.pid, *doomed):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: all(map(is_dead, doomed)), "the controller's processes to be gone")
        self._process = None

    def stop(self) -> None:
        """Stop whatever still runs of it."""
        if self._process is not None:
            self.kill()

    def _ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the Iris controller did not start:\n{self.log}")
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def iris_server() -> Iterator[IrisServer]:
    """A started controller; nothing of it is left at the end."""
    # Names of sockets have to be short, and pytest's folders are not.
    with tempfile.TemporaryDirectory(prefix="iris-", ignore_cleanup_errors=True) as folder:
        server = IrisServer(Path(folder), free_port())
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold spaces.
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = list(children.get(pid, ()))
    for child in found:
        found.extend(children.get(child, ()))
    return found
