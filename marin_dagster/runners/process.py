"""Steps in processes of this machine, each forked from a small warm one (see ``zygote``).

A step's process has the run worker's environment and packages, but none of its memory. It dies with
the run worker, so there is never a process to attach to. Steps that need GPUs start in the order of
submission, each when enough GPUs are free.
"""

import codecs
import os
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
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
from marin_dagster.runners.zygote import Order
from marin_dagster.runners.zygote_client import StepProcess, ZygoteClient
from marin_dagster.steps import StepLike
from marin_dagster.steps.resources import parse_size

_LEAST_MEMORY = 32 << 20
_GPU_PAUSE_S = 0.2
_LOG_DRAIN_S = 0.5
"""How long the log is read after the step has ended: a child outside the step's process group may
hold the pipe open for ever."""


@dataclass(eq=False)
class ProcessJob(Job):
    """One step's process."""

    runner: "ProcessRunner" = field(kw_only=True)
    order: Order = field(kw_only=True)
    gpus: int = field(default=0, kw_only=True)
    """The number of GPUs that it needs."""
    process: StepProcess | None = field(default=None, init=False)
    """None until it starts."""
    cancelled: bool = field(default=False, init=False)
    _begun: threading.Event = field(default_factory=threading.Event, init=False)
    """Set when it has started, or never will."""

    def logs(self) -> Iterator[tuple[str, str]]:
        """The output of the process and its children."""
        if self.gpus and not self._begun.is_set():
            yield "stderr", f"[waiting for {self.gpus} of {self.runner.gpus_text()}]\n"
        self._begun.wait()
        if self.process is None:
            return
        try:
            yield from self._read(self.process.outputs)
        finally:
            for descriptor in self.process.outputs:
                os.close(descriptor)

    def _read(self, outputs: tuple[int, int]) -> Iterator[tuple[str, str]]:
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in outputs]
        deadline: float | None = None
        with selectors.DefaultSelector() as selector:
            for index, descriptor in enumerate(outputs):
                selector.register(descriptor, selectors.EVENT_READ, index)
            while selector.get_map():
                if deadline is None and self.status.state.final:
                    deadline = time.monotonic() + _LOG_DRAIN_S
                for key, _ in selector.select(_LOG_DRAIN_S):
                    data = os.read(key.fd, 65536)
                    text = decoders[key.data].decode(data, final=not data)
                    if text:
                        yield ("stdout", "stderr")[key.data], text
                    if not data:
                        selector.unregister(key.fd)
                if deadline is not None and time.monotonic() > deadline:
                    return

    def cancel(self) -> None:
        """Stop the process and its group: SIGTERM, then SIGKILL a second later."""
        self.cancelled = True
        self.runner.stop(self)

    def begin(self, process: StepProcess) -> None:
        """Report that the process runs."""
        self.process, self.id = process, f"{self.name} (pid {process.pid})"
        self.report(JobStatus(JobState.RUNNING))
        self._begun.set()

    def end_unbegun(self, state: JobState, reason: str = "") -> None:
        """Report that the job has ended without a process."""
        self.report(JobStatus(state, reason))
        self._begun.set()

    def await_end(self, process: StepProcess) -> None:
        """Wait for the end of the process and report it."""
        code = process.wait()
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
    _zygote: ZygoteClient = field(default_factory=ZygoteClient)
    _waiting: deque[ProcessJob] = field(default_factory=deque)
    """Jobs that need GPUs, in order of submission."""
    _gpus_changed: threading.Condition = field(default_factory=threading.Condition)
    _giver: threading.Thread | None = None
    """Gives GPUs to waiting jobs; runs while there are any."""

    @property
    def engine(self) -> str:
        """This machine, while this process lives."""
        return PROCESS_ENGINE

    def refuses(self, step: StepLike, request: Request) -> str | None:
        """Refuse TPUs, several replicas, package installations and other machines."""
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
        if self.settings.limit_memory and parse_size(resources.ram) < _LEAST_MEMORY:
            return (
                f"Python cannot start in ram={resources.ram!r}, {parse_size(resources.ram)} bytes"
            )
        if resources.replicas > 1:
            return f"it runs one replica only (replicas={resources.replicas})"
        for field_name in ("image", "container_profile", "zone", "target_cluster"):
            value = getattr(resources, field_name, None)
            if value is not None:
                return f"it runs on this machine only ({field_name}={value!r})"
        regions = resources.regions
        if regions is not None and "*" not in regions:
            return f"it runs on this machine only (regions={list(regions)!r})"
        return None

    def submit(self, name: str, call: StepCall, request: Request) -> ProcessJob:
        """Fork a process for the call."""
        packed = pack(call)
        environment = {**os.environ, **self.settings.env, **request.env_vars}
        for variable in RANK_VARIABLES:
            # The run worker may be a rank of a job; its children are not.
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
                f"step {call.name_with_hash}: cannot start a process: {error}"
            ) from error
        return job

    def attach(self, name: str) -> None:
        """Returns None: a process does not outlive its run worker."""

    def stop(self, job: ProcessJob) -> None:
        """Stop a job's process group, or remove it from the queue for GPUs."""
        with self._gpus_changed:
            if job in self._waiting:
                self._waiting.remove(job)
                job.end_unbegun(JobState.CANCELLED)
                self._gpus_changed.notify()
        if job.process is not None:
            self._zygote.kill(job.process.pid)

    def close(self) -> None:
        """End every job, and the small process."""
        for job in list(self._waiting):
            self.stop(job)
        self._zygote.close()

    def gpus_text(self) -> str:
        """How many GPUs steps may use, and which setting limits them."""
        seen = {**os.environ, **self.settings.env}.get(VISIBLE)
        where = "the setting gpus" if seen is None else f"{VISIBLE}={seen!r}"
        return f"{len(self._devices())} GPUs by {where}"

    def _devices(self) -> list[str]:
        return visible_gpus({**os.environ, **self.settings.env}, self.settings.gpus)

    def _begin(self, job: ProcessJob, gpus: Mapping[str, int]) -> None:
        """Fork the job's process, and free its GPUs when it ends."""
        order = job.order
        if gpus:
            order = replace(order, environment={**order.environment, VISIBLE: ",".join(gpus)})
        process = self._zygote.fork(order)
        job.begin(process)
        if job.cancelled:
            self.stop(job)

        def await_end() -> None:
            try:
                job.await_end(process)
            finally:
                with self._gpus_changed:
                    free_gpus(gpus)
                    self._gpus_changed.notify()

        threading.Thread(target=await_end, name=f"marin-process-{process.pid}", daemon=True).start()

    def _enqueue(self, job: ProcessJob) -> None:
        with self._gpus_changed:
            self._waiting.append(job)
            if self._giver is None:
                self._giver = threading.Thread(target=self._give_gpus, daemon=True)
                self._giver.start()

    def _give_gpus(self) -> None:
        """Start waiting jobs in order, each as soon as all its GPUs are free."""
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
                    job.end_unbegun(JobState.FAILED, f"cannot lock a GPU: {error}")
                    continue
                if gpus is None:
                    # Poll: other processes do not notify this one when they free theirs.
                    self._gpus_changed.wait(_GPU_PAUSE_S)
                    continue
                self._waiting.popleft()
            try:
                self._begin(job, gpus)
            except OSError as error:
                free_gpus(gpus)
                job.end_unbegun(JobState.FAILED, f"cannot start a process: {error}")
