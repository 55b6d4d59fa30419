"""The zygote: a small warm process that forks steps, so that they start in milliseconds.

It has imported only the modules that a worker needs: no threads, no Dagster, none of the run
worker's memory. It reads orders from a socket. Each comes with four descriptors: the order, the
step's stdout and stderr, and a pipe for the process id and then the exit code. Each step leads its
own process group. When a step ends, the rest of its group is killed; when the run worker dies, all
steps are killed.

Python's fork server does most of this, but it runs its client's main script again in every child,
which takes a second for Dagster's commands, and it survives its client's children.
"""

import ctypes
import gc
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from marin_dagster.runners.payload import run_packed

MESSAGE = struct.Struct("=cq")
"""A message on the socket: a letter, and for ``KILL`` a process id."""
START, KILL = b"s", b"k"
NUMBER = struct.Struct("=q")
"""A number on the status pipe: first the process id, then the exit code, negative for a signal."""

ERROR_REPORT_BYTES = 64 << 20
"""Memory beyond the limit, for a step that has reached it to write its error file."""
_TERM_TO_KILL_S = 1.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Order:
    """What a step's process needs."""

    packed: bytes
    """For :func:`run_packed`."""
    environment: Mapping[str, str]
    """All its environment variables."""
    folder: str
    """Its working directory."""
    path: Sequence[str]
    """Its ``sys.path``."""
    memory: int | None
    """How many bytes it may allocate; None for no limit."""


@dataclass(eq=False)
class Zygote:
    """Forks steps and reports their exit codes."""

    control: socket.socket
    _running: dict[int, int] = field(default_factory=dict)
    """The status pipe of each step, by process id."""
    _kill_at: dict[int, float] = field(default_factory=dict)

    def serve(self) -> None:
        """Serve until the run worker has ended."""
        wake, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # The socket is not enough: a process forked from the run worker may hold it open.
        worker = _watch(os.getppid())
        while True:
            timeout = None
            if self._kill_at:
                timeout = max(0.0, min(self._kill_at.values()) - time.monotonic())
            watched = [self.control.fileno(), wake, *worker]
            ready, _, _ = select.select(watched, [], [], timeout)
            if wake in ready:
                os.read(wake, 4096)
            self._reap()
            self._kill_overdue()
            gone = not worker.isdisjoint(ready)
            called = self.control.fileno() in ready
            if gone or (called and not self._obey(wake, waker, *worker)):
                for pid in self._running:
                    _kill_group(pid, signal.SIGKILL)
                return

    def _obey(self, *unwanted: int) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self.control, MESSAGE.size, 4)
        if len(message) < MESSAGE.size:
            return False
        kind, pid = MESSAGE.unpack(message)
        if kind == KILL:
            if pid in self._running:
                _kill_group(pid, signal.SIGTERM)
                self._kill_at[pid] = time.monotonic() + _TERM_TO_KILL_S
            return True
        order, stdout, stderr, status = descriptors
        try:
            child = os.fork()
        except OSError:
            # The run worker sees the status pipe end without a number.
            for descriptor in descriptors:
                os.close(descriptor)
            return True
        if child == 0:
            self.control.close()
            for descriptor in (*unwanted, status, *self._running.values()):
                os.close(descriptor)
            _run(order, stdout, stderr)
        with suppress(OSError):  # the child does the same; either may come first
            os.setpgid(child, child)
        for descriptor in (order, stdout, stderr):
            os.close(descriptor)
        self._running[child] = status
        _send(status, child)
        return True

    def _reap(self) -> None:
        while self._running:
            # WNOWAIT: until waitpid() below, its process id cannot be reused.
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if found is None:
                return
            pid = found.si_pid
            _kill_group(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            self._kill_at.pop(pid, None)
            pipe = self._running.pop(pid)
            _send(pipe, os.waitstatus_to_exitcode(status))
            os.close(pipe)

    def _kill_overdue(self) -> None:
        for pid, moment in list(self._kill_at.items()):
            if time.monotonic() >= moment:
                _kill_group(pid, signal.SIGKILL)
                with suppress(ProcessLookupError):  # it may have joined another group
                    os.kill(pid, signal.SIGKILL)
                del self._kill_at[pid]


def main(descriptor: int) -> None:
    """Serve the run worker at the other end of a socket."""
    # Otherwise every step's process would import these; none of them starts a thread.
    import cloudpickle  # noqa: F401
    import fsspec.implementations.local  # noqa: F401

    gc.collect()
    # Excluded from garbage collection, these objects stay in pages shared with the children.
    gc.freeze()
    Zygote(socket.socket(fileno=descriptor)).serve()


def _watch(pid: int) -> set[int]:
    """A descriptor that becomes readable when the process ends; empty if the system has none."""
    try:
        return {os.pidfd_open(pid)} if sys.platform == "linux" else set()
    except ProcessLookupError:
        raise SystemExit(0) from None


def _send(pipe: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(pipe, NUMBER.pack(number))


def _limit_memory(limit: int) -> None:
    """Set the soft limit, and a higher hard limit for writing the error file."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    hard = limit + ERROR_REPORT_BYTES
    if most != resource.RLIM_INFINITY:
        hard = min(hard, most)
    resource.setrlimit(resource.RLIMIT_DATA, (min(limit, hard), hard))


def _kill_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _run(order_file: int, stdout: int, stderr: int) -> NoReturn:
    """Run the step in the forked process."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if sys.platform == "linux":
            # If the zygote is killed, nothing else could stop the step.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        # The run worker may have none.
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        with open(order_file, "rb") as file:
            order: Order = pickle.load(file)
        os.environ.clear()
        os.environ.update(order.environment)
        os.chdir(order.folder)
        sys.path[:] = order.path
        if order.memory is not None:
            _limit_memory(order.memory)
        run_packed(order.packed)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # Skip exit handlers: they belong to the zygote.
        os._exit(code)
