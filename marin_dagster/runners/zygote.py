"""The small process from which steps are forked, kept warm so that a step starts in milliseconds.

It has imported what a worker needs and nothing else: no threads, no Dagster, nothing of the run
worker's memory. It reads orders from a socket; with each come four descriptors: the order itself,
the step's stdout and stderr, and a pipe that receives the process id and then the exit code. Each
step leads a process group of its own. When the step ends, what is left of its group is killed; when
the run worker dies, everything is killed.

Python's own fork server would do most of this, but runs the main script of its client again in
every child, which for Dagster's commands takes a second, and survives its client's children.
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
"""What the socket carries: a letter, and a process id with ``KILL``."""
START, KILL = b"s", b"k"
NUMBER = struct.Struct("=q")
"""What the status pipe carries: the process id, then the exit code, negative for a signal."""

LAST_WORDS_BYTES = 64 << 20
"""Memory beyond the limit with which a step that has reached it can write down its error."""
_TERM_TO_KILL_S = 1.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Order:
    """What a step's process is and does."""

    packed: bytes
    """For :func:`run_packed`."""
    environment: Mapping[str, str]
    """Its whole environment."""
    folder: str
    """Its working directory."""
    path: Sequence[str]
    """Its ``sys.path``."""
    memory: int | None
    """Bytes of data that it may allocate; None for no limit."""


@dataclass(eq=False)
class Zygote:
    """Forks steps and tells how they ended."""

    control: socket.socket
    _running: dict[int, int] = field(default_factory=dict)
    """Process id of each step, and the pipe for its exit code."""
    _kill_at: dict[int, float] = field(default_factory=dict)

    def serve(self) -> None:
        """Until the run worker is gone."""
        wake, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # The socket alone does not tell: a process that the run worker has forked may hold it open.
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
            # The run worker learns it from the pipe that ends without a word.
            for descriptor in descriptors:
                os.close(descriptor)
            return True
        if child == 0:
            self.control.close()
            for descriptor in (*unwanted, status, *self._running.values()):
                os.close(descriptor)
            _run(order, stdout, stderr)
        with suppress(OSError):  # the child says the same, and one of the two comes first
            os.setpgid(child, child)
        for descriptor in (order, stdout, stderr):
            os.close(descriptor)
        self._running[child] = status
        _tell(status, child)
        return True

    def _reap(self) -> None:
        while self._running:
            # Looked at before it is waited for: until then its id cannot be anybody else's.
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if found is None:
                return
            pid = found.si_pid
            _kill_group(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            self._kill_at.pop(pid, None)
            pipe = self._running.pop(pid)
            _tell(pipe, os.waitstatus_to_exitcode(status))
            os.close(pipe)

    def _kill_overdue(self) -> None:
        for pid, moment in list(self._kill_at.items()):
            if time.monotonic() >= moment:
                _kill_group(pid, signal.SIGKILL)
                with suppress(ProcessLookupError):  # it may have joined another group
                    os.kill(pid, signal.SIGKILL)
                del self._kill_at[pid]


def main(descriptor: int) -> None:
    """Serve the run worker on the other end of a socket."""
    # What every step's process would import otherwise; none of it starts a thread.
    import cloudpickle  # noqa: F401
    import fsspec.implementations.local  # noqa: F401

    gc.collect()
    # What is here now is never garbage; leaving it alone keeps its pages shared with the children.
    gc.freeze()
    Zygote(socket.socket(fileno=descriptor)).serve()


def _watch(pid: int) -> set[int]:
    """A descriptor that becomes readable when the process ends, where the system has such."""
    try:
        return {os.pidfd_open(pid)} if sys.platform == "linux" else set()
    except ProcessLookupError:
        raise SystemExit(0) from None


def _tell(pipe: int, number: int) -> None:
    with suppress(BrokenPipeError):
        os.write(pipe, NUMBER.pack(number))


def _limit_memory(limit: int) -> None:
    """The soft limit is what counts; the hard one leaves room to say that it was reached."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    hard = limit + LAST_WORDS_BYTES
    if most != resource.RLIM_INFINITY:
        hard = min(hard, most)
    resource.setrlimit(resource.RLIMIT_DATA, (min(limit, hard), hard))


def _kill_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _run(order_file: int, stdout: int, stderr: int) -> NoReturn:
    """Be the step's process."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if sys.platform == "linux":
            # Should this small process be killed, nobody would know of the step any more.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)
        # The run worker may have been started without them.
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
        # Without this process's exit handlers: they belong to the small process.
        os._exit(code)
