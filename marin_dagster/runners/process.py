"""Steps in processes of this machine, each forked from a small warm one (see ``zygote``).

A step's process sees the run worker's environment and packages, but nothing of its memory. It dies
with the run worker, so an attempt that was cut off is never found again.
"""

import codecs
import os
import pickle
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marin_dagster.errors import EngineError
from marin_dagster.runners.base import (
    PROCESS_ENGINE,
    Job,
    JobState,
    JobStatus,
    Request,
    describe_exit,
)
from marin_dagster.runners.payload import RANK_VARIABLES, StepCall, pack
from marin_dagster.runners.settings import ProcessSettings
from marin_dagster.runners.zygote import KILL, MESSAGE, NUMBER, START, Order
from marin_dagster.steps import StepLike
from marin_dagster.steps.resources import parse_size

_LEAST_BYTES = 32 << 20
_LAST_WORDS_S = 0.5
"""How long the log is read after the step has ended; a process that it has left behind outside its
group may hold the pipe open for ever."""


@dataclass(eq=False)
class ProcessJob(Job):
    """One step's process."""

    runner: "ProcessRunner" = field(kw_only=True)
    pid: int = field(kw_only=True)
    outputs: tuple[int, int] = field(kw_only=True)
    """Where its stdout and stderr can be read."""
    gpus: Sequence[int] = field(kw_only=True)
    """GPUs that it was given."""
    _cancelled: bool = False

    def logs(self) -> Iterator[tuple[str, str]]:
        """What the process and its children write."""
        try:
            yield from self._read()
        finally:
            for descriptor in self.outputs:
                os.close(descriptor)

    def _read(self) -> Iterator[tuple[str, str]]:
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in self.outputs]
        deadline: float | None = None
        with selectors.DefaultSelector() as selector:
            for index, descriptor in enumerate(self.outputs):
                selector.register(descriptor, selectors.EVENT_READ, index)
            while selector.get_map():
                if deadline is None and self.status.state.final:
                    deadline = time.monotonic() + _LAST_WORDS_S
                for key, _ in selector.select(_LAST_WORDS_S):
                    data = os.read(key.fd, 65536)
                    text = decoders[key.data].decode(data, final=not data)
                    if text:
                        yield ("stdout", "stderr")[key.data], text
                    if not data:
                        selector.unregister(key.fd)
                if deadline is not None and time.monotonic() > deadline:
                    return

    def cancel(self) -> None:
        """Stop the process and everything in its group: SIGTERM, and SIGKILL a second later."""
        self._cancelled = True
        self.runner.stop(self)

    def await_end(self, status_pipe: int) -> None:
        """Report how the process ends; runs in a thread of its own."""
        code = _read_number(status_pipe)
        os.close(status_pipe)
        if code is None:
            self.report(JobStatus(JobState.LOST, "the process that starts steps has died"))
        elif code == 0:
            self.report(JobStatus(JobState.SUCCEEDED))
        elif self._cancelled:
            self.report(JobStatus(JobState.CANCELLED))
        else:
            self.report(JobStatus(JobState.FAILED, describe_exit(code)))


@dataclass(eq=False)
class ProcessRunner:
    """Runs steps in processes of this machine."""

    name: str = "process"
    settings: ProcessSettings = field(default_factory=ProcessSettings)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _zygote: "subprocess.Popen[bytes] | None" = None
    _control: socket.socket | None = None
    _gpu_use: list[int] = field(default_factory=list)

    @property
    def engine(self) -> str:
        """This machine, for as long as this process lives."""
        return PROCESS_ENGINE

    def refuses(self, step: StepLike, request: Request) -> str | None:
        """This machine has no TPUs, one replica, and the packages that it has."""
        resources = request.resources
        if request.pip_packages or request.pip_dependency_groups:
            return "it installs no packages (pip_packages, pip_dependency_groups)"
        if resources is None:
            return None
        if resources.device.kind == "tpu":
            return f"it has no TPUs (device {resources.device.variant})"
        gpus = resources.device.count if resources.device.kind == "gpu" else 0
        if gpus > self._gpus():
            return (
                f"it has {self._gpus()} GPUs (device {resources.device.variant} x {gpus}; the "
                "setting gpus says otherwise)"
            )
        if self.settings.limit_memory and parse_size(resources.ram) < _LEAST_BYTES:
            return f"no Python starts in ram={resources.ram!r}, {parse_size(resources.ram)} bytes"
        if resources.replicas > 1:
            return f"it runs one replica (replicas={resources.replicas})"
        for field_name in ("image", "container_profile", "zone", "target_cluster"):
            value = getattr(resources, field_name, None)
            if value is not None:
                return f"it is this machine as it is ({field_name}={value!r})"
        regions = resources.regions
        if regions is not None and "*" not in regions:
            return f"it is this machine as it is (regions={list(regions)!r})"
        return None

    def submit(self, name: str, call: StepCall, request: Request) -> ProcessJob:
        """Fork a process for the call."""
        packed = pack(call)
        gpus = self._take_gpus(request.resources)
        environment = {**os.environ, **self.settings.env, **request.env_vars}
        for variable in RANK_VARIABLES:
            # The run worker may be a rank of something; its children are not.
            environment.pop(variable, None)
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        memory = None
        if self.settings.limit_memory and request.resources is not None:
            memory = parse_size(request.resources.ram)
        order = Order(packed, environment, os.getcwd(), list(sys.path), memory)
        try:
            pid, outputs, status_pipe = self._start(order)
        except OSError as error:
            self._give_gpus_back(gpus)
            raise EngineError(
                f"step {call.name_with_hash}: no process could be started: {error}"
            ) from error
        job = ProcessJob(
            name, id=f"{name} (pid {pid})", runner=self, pid=pid, outputs=outputs, gpus=gpus
        )
        job.report(JobStatus(JobState.RUNNING))

        def await_end() -> None:
            job.await_end(status_pipe)
            self._give_gpus_back(gpus)

        threading.Thread(target=await_end, name=f"marin-process-{pid}", daemon=True).start()
        return job

    def attach(self, name: str) -> None:
        """None: a process does not outlive the run worker that started it."""

    def stop(self, job: ProcessJob) -> None:
        """Stop a job's process group."""
        with self._mutex, suppress(OSError):
            if self._control is not None:
                self._control.sendall(MESSAGE.pack(KILL, job.pid))

    def close(self) -> None:
        """End the small process and with it every step that still runs."""
        with self._mutex:
            zygote, self._zygote = self._zygote, None
            self._disconnect()
        if zygote is not None:
            try:
                zygote.wait(timeout=10)
            except subprocess.TimeoutExpired:
                zygote.kill()
                zygote.wait()

    def _start(self, order: Order) -> tuple[int, tuple[int, int], int]:
        """``(pid, (stdout, stderr), status pipe)`` of a new process."""
        out, out_writer = os.pipe()
        err, err_writer = os.pipe()
        status, status_writer = os.pipe()
        readers, writers = (out, err, status), (out_writer, err_writer, status_writer)
        try:
            with tempfile.TemporaryFile() as file:
                pickle.dump(order, file)
                file.flush()
                file.seek(0)
                with self._mutex:
                    socket.send_fds(
                        self._connected(), [MESSAGE.pack(START, 0)], [file.fileno(), *writers]
                    )
        except BaseException:
            for descriptor in readers:
                os.close(descriptor)
            raise
        finally:
            for descriptor in writers:
                os.close(descriptor)
        pid = _read_number(status)
        if pid is None:
            for descriptor in readers:
                os.close(descriptor)
            raise OSError("the process that starts steps has died")
        return pid, (out, err), status

    def _connected(self) -> socket.socket:
        """The socket to the small process, started anew where it is not running."""
        if self._zygote is not None and self._zygote.poll() is None and self._control is not None:
            return self._control
        self._disconnect()
        ours, theirs = socket.socketpair()
        with theirs:
            self._zygote = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    # The path first, so that it finds this package where this process has found it.
                    f"import sys; sys.path[:] = {sys.path!r}; "
                    f"from marin_dagster.runners.zygote import main; main({theirs.fileno()})",
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C in a terminal is for the run worker, which stops steps in its own way.
                start_new_session=True,
            )
        self._control = ours
        return ours

    def _disconnect(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            # Not only closed: a process that was forked from this one may hold it open.
            with suppress(OSError):
                control.shutdown(socket.SHUT_RDWR)
            control.close()

    def _gpus(self) -> int:
        if self.settings.gpus is not None:
            return self.settings.gpus
        return sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))

    def _take_gpus(self, resources: Any) -> list[int]:
        """The GPUs that the fewest running steps use."""
        if resources is None or resources.device.kind != "gpu":
            return []
        with self._mutex:
            if not self._gpu_use:
                self._gpu_use = [0] * self._gpus()
            ranked = sorted(range(len(self._gpu_use)), key=self._gpu_use.__getitem__)
            taken = sorted(ranked[: resources.device.count])
            for gpu in taken:
                self._gpu_use[gpu] += 1
            return taken

    def _give_gpus_back(self, gpus: Sequence[int]) -> None:
        with self._mutex:
            for gpu in gpus:
                self._gpu_use[gpu] -= 1


def _read_number(pipe: int) -> int | None:
    data = b""
    while len(data) < NUMBER.size:
        piece = os.read(pipe, NUMBER.size - len(data))
        if not piece:
            return None
        data += piece
    number: int = NUMBER.unpack(data)[0]
    return number
