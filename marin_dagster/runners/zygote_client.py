"""``ZygoteClient``: the run worker's end of the small process that forks steps (see ``zygote``)."""

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from marin_dagster.runners.zygote import KILL, MESSAGE, NUMBER, START, Order


@dataclass(frozen=True)
class StepProcess:
    """A step's process."""

    pid: int
    outputs: tuple[int, int]
    """Descriptors to read its stdout and stderr from."""
    status_pipe: int

    def wait(self) -> int | None:
        """Its exit code, negative for a signal; None if the small process has died."""
        try:
            return _read_number(self.status_pipe)
        finally:
            os.close(self.status_pipe)


@dataclass(eq=False)
class ZygoteClient:
    """Starts the small process when it is first needed, and again if it has died."""

    process: "subprocess.Popen[bytes] | None" = None
    _control: socket.socket | None = None
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def fork(self, order: Order) -> StepProcess:
        """Start a step's process.

        Raises:
            OSError: no process can be started.
        """
        out, out_writer = os.pipe()
        err, err_writer = os.pipe()
        status, status_writer = os.pipe()
        readers, writers = (out, err, status), (out_writer, err_writer, status_writer)
        pid = None
        try:
            try:
                with tempfile.TemporaryFile() as file:
                    pickle.dump(order, file)
                    file.flush()
                    file.seek(0)
                    with self._mutex:
                        socket.send_fds(
                            self._connected(), [MESSAGE.pack(START, 0)], [file.fileno(), *writers]
                        )
            finally:
                for descriptor in writers:
                    os.close(descriptor)
            pid = _read_number(status)
            if pid is None:
                raise OSError("the process that starts steps has died")
        finally:
            if pid is None:
                for descriptor in readers:
                    os.close(descriptor)
        return StepProcess(pid, (out, err), status)

    def kill(self, pid: int) -> None:
        """Stop a step's process group: SIGTERM, then SIGKILL a second later."""
        with self._mutex, suppress(OSError):
            if self._control is not None:
                self._control.sendall(MESSAGE.pack(KILL, pid))

    def close(self) -> None:
        """End the small process, and with it every step that still runs."""
        with self._mutex:
            process, self.process = self.process, None
            self._disconnect()
        if process is not None:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _connected(self) -> socket.socket:
        """The socket to the small process, which is started if it does not run."""
        if self.process is not None and self.process.poll() is None and self._control is not None:
            return self._control
        self._disconnect()
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    # sys.path first: the small process must find the same copy of this package.
                    f"import sys; sys.path[:] = {sys.path!r}; "
                    f"from marin_dagster.runners.zygote import main; main({theirs.fileno()})",
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C in a terminal must reach the run worker only, which then cancels its steps.
                start_new_session=True,
            )
        self._control = ours
        return ours

    def _disconnect(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            # close() alone is not enough: a process forked from this one may hold the socket open.
            with suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)
            control.close()


def _read_number(pipe: int) -> int | None:
    data = b""
    while len(data) < NUMBER.size:
        piece = os.read(pipe, NUMBER.size - len(data))
        if not piece:
            return None
        data += piece
    number: int = NUMBER.unpack(data)[0]
    return number
