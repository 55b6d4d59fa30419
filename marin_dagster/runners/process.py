"""Steps in processes of this machine, each forked from a small warm one (see ``zygote``).

A step's process sees the run worker's environment and packages, but nothing of its memory. It dies
with the run worker, so an attempt that was cut off is never found again. One that asks for GPUs
starts when so many are free, in the order of submission.
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
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from marin_dagster.errors import EngineError
from marin_dagster.runners.base import (
    PROCESS_ENGINE,
    Job,
    JobState,
    JobStatus,
    Request,
    describe_exit,
)
from marin_dagster.runners.gpus import VISIBLE, free_gpus, gpus_wanted, take_gpus, visible_gpus
from marin_dagster.runners.payload import RANK_VARIABLES, StepCall, pack
from marin_dagster.runners.settings import ProcessSettings
from marin_dagster.runners.zygote import KILL, MESSAGE, NUMBER, START, Order
from marin_dagster.steps import StepLike
from marin_dagster.steps.resources import parse_size

_LEAST_BYTES = 32 << 20
_GPU_PAUSE_S = 0.2
_LAST_WORDS_S = 0.5
"""How long the log is read after the step has ended; a process that it has left behind outside its
group may hold the pipe open for ever."""


@dataclass(eq=False)
class ProcessJob(Job):
    """One step's process."""

    runner: "ProcessRunner" = field(kw_only=True)
    order: Order = field(kw_only=True)
    gpus: int = field(default=0, kw_only=True)
    """How many GPUs it needs."""
    pid: int | None = field(default=None, init=False)
    """None until it starts."""
    cancelled: bool = field(default=False, init=False)
    _outputs: tuple[int, int] | None = field(default=None, init=False)
    """Where its stdout and stderr can be read."""
    _begun: threading.Event = field(default_factory=threading.Event, init=False)
    """It has started, or will not."""

    def logs(self) -> Iterator[tuple[str, str]]:
        """What the process and its children write."""
        if self.gpus and not self._begun.is_set():
            yield "stderr", f"[waiting for {self.gpus} of {self.runner.gpus_text()}]\n"
        self._begun.wait()
        if self._outputs is None:
            return
        try:
            yield from self._read(self._outputs)
        finally:
            for descriptor in self._outputs:
                os.close(descriptor)

    def _read(self, outputs: tuple[int, int]) -> Iterator[tuple[str, str]]:
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in outputs]
        deadline: float | None = None
        with selectors.DefaultSelector() as selector:
            for index, descriptor in enumerate(outputs):
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
        self.cancelled = True
        self.runner.stop(self)

    def begin(self, pid: int, outputs: tuple[int, int]) -> None:
        """Its process runs."""
        self.pid, self.id, self._outputs = pid, f"{self.name} (pid {pid})", outputs
        self.report(JobStatus(JobState.RUNNING))
        self._begun.set()

    def end_unbegun(self, state: JobState, reason: str = "") -> None:
        """It never starts."""
        self.report(JobStatus(state, reason))
        self._begun.set()

    def await_end(self, status_pipe: int) -> None:
        """Report how the process ends; runs in a thread of its own."""
        code = _read_number(status_pipe)
        os.close(status_pipe)
        if code is None:
            self.report(JobStatus(JobState.LOST, "the process that starts steps has died"))
        elif code == 0:
            self.report(JobStatus(JobState.SUCCEEDED))
        elif self.cancelled:
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
    _waiting: deque[ProcessJob] = field(default_factory=deque)
    """Jobs that need GPUs, in the order of their submission."""
    _gpus_changed: threading.Condition = field(default_factory=threading.Condition)
    _giver: threading.Thread | None = None
    """Gives GPUs to waiting jobs; lives while there are any."""

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
        gpus = gpus_wanted(resources)
        if gpus > len(self._devices()):
            return f"it has {self.gpus_text()} (device {resources.device.variant} x {gpus})"
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
        environment = {**os.environ, **self.settings.env, **request.env_vars}
        for variable in RANK_VARIABLES:
            # The run worker may be a rank of something; its children are not.
            environment.pop(variable, None)
        memory = None
        if self.settings.limit_memory and request.resources is not None:
            memory = parse_size(request.resources.ram)
        order = Order(packed, environment, os.getcwd(), list(sys.path), memory)
        job = ProcessJob(name, runner=self, order=order, gpus=gpus_wanted(request.resources))
        if job.gpus:
            self._enqueue(job)
            return job
        try:
            self._begin(job, {})
        except OSError as error:
            raise EngineError(
                f"step {call.name_with_hash}: no process could be started: {error}"
            ) from error
        return job

    def attach(self, name: str) -> None:
        """None: a process does not outlive the run worker that started it."""

    def stop(self, job: ProcessJob) -> None:
        """Stop a job's process group, or let it wait no more."""
        with self._gpus_changed:
            if job in self._waiting:
                self._waiting.remove(job)
                job.end_unbegun(JobState.CANCELLED)
                self._gpus_changed.notify()
        with self._mutex, suppress(OSError):
            if self._control is not None and job.pid is not None:
                self._control.sendall(MESSAGE.pack(KILL, job.pid))

    def close(self) -> None:
        """End the small process and with it every step that still runs."""
        for job in list(self._waiting):
            self.stop(job)
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

    def gpus_text(self) -> str:
        """How many GPUs steps may use, and where to change it."""
        seen = {**os.environ, **self.settings.env}.get(VISIBLE)
        where = "the setting gpus" if seen is None else f"{VISIBLE}={seen!r}"
        return f"{len(self._devices())} GPUs by {where}"

    def _devices(self) -> list[str]:
        return visible_gpus({**os.environ, **self.settings.env}, self.settings.gpus)

    def _begin(self, job: ProcessJob, gpus: Mapping[str, int]) -> None:
        """Fork the job's process; its GPUs are free when it ends."""
        order = job.order
        if gpus:
            order = replace(order, environment={**order.environment, VISIBLE: ",".join(gpus)})
        pid, outputs, status_pipe = self._start(order)
        job.begin(pid, outputs)
        if job.cancelled:
            self.stop(job)

        def await_end() -> None:
            try:
                job.await_end(status_pipe)
            finally:
                with self._gpus_changed:
                    free_gpus(gpus)
                    self._gpus_changed.notify()

        threading.Thread(target=await_end, name=f"marin-process-{pid}", daemon=True).start()

    def _enqueue(self, job: ProcessJob) -> None:
        with self._gpus_changed:
            self._waiting.append(job)
            if self._giver is None:
                self._giver = threading.Thread(target=self._give_gpus, daemon=True)
                self._giver.start()

    def _give_gpus(self) -> None:
        """Start waiting jobs, each as soon as it can have all its GPUs."""
        while True:
            with self._gpus_changed:
                if not self._waiting:
                    self._giver = None
                    return
                job = self._waiting[0]
                try:
                    gpus = take_gpus(self._devices(), job.gpus)
                except OSError as error:
                    self._waiting.popleft()
                    job.end_unbegun(JobState.FAILED, f"no GPU can be taken: {error}")
                    continue
                if gpus is None:
                    # Other processes free theirs without a word.
                    self._gpus_changed.wait(_GPU_PAUSE_S)
                    continue
                self._waiting.popleft()
            try:
                self._begin(job, gpus)
            except OSError as error:
                free_gpus(gpus)
                job.end_unbegun(JobState.FAILED, f"no process could be started: {error}")


def _read_number(pipe: int) -> int | None:
    data = b""
    while len(data) < NUMBER.size:
        piece = os.read(pipe, NUMBER.size - len(data))
        if not piece:
            return None
        data += piece
    number: int = NUMBER.unpack(data)[0]
    return number
