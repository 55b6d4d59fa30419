"""A real Slurm of one node, with its state, ports and key of its own, for as long as tests need it.

The node has two cores and 8,000 MiB whatever the machine has, limits memory by looking every
second, and gives what it has first to the partition ``urgent``, whose jobs stop others.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from helpers.processes import GUARD_S, free_port
from marin_dagster import ResourceConfig, StepSpec
from marin_dagster.cache.record import step_record
from marin_dagster.runners import JobStatus, Request, SlurmSettings, StepCall
from marin_dagster.runners.slurm import SlurmJob, SlurmRunner

SMALL = ResourceConfig(ram="512m")
SLOTS = 2
"""Jobs of one core that run at once."""
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
KillWait=5
Epilog={folder}/epilog
DefMemPerCPU=500
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""


class Unavailable(Exception):
    """Why there is no Slurm here."""


@dataclass(eq=False)
class SlurmServer:
    """The running daemons."""

    folder: Path
    """Their state and logs; not for jobs."""
    conf: Path
    daemons: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def hold(self) -> Path:
        """While this file exists, a job that has ended stays COMPLETING."""
        return self.folder / "hold"

    def settings(self, folder: Path, **more: Any) -> Mapping[str, Any]:
        """Settings of a Slurm runner whose jobs have their files in ``folder``."""
        return {"folder": str(folder), **more}

    def unreachable(self) -> Path:
        """A configuration of the same cluster with a port where nothing listens,
        and gives up sooner."""
        port = self.conf.read_text().partition("SlurmctldPort=")[2].split()[0]
        wrong = self.folder / "unreachable.conf"
        text = self.conf.read_text().replace(port, str(free_port()))
        wrong.write_text(f"{text}MessageTimeout=3\n")
        return wrong

    def start(self, name: str, *command: str) -> None:
        """Start a daemon that stays in the foreground."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"SLURM_CONF": str(self.conf)},
                start_new_session=True,
            )

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until something about the daemons holds."""
        deadline = time.monotonic() + 60
        while not holds():
            dead = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            if dead or time.monotonic() > deadline:
                logs = "\n".join(
                    f"{log.name}: {log.read_text(errors='replace')[-2000:]}"
                    for log in self.folder.glob("*.log")
                )
                raise RuntimeError(f"{what}: waited in vain; ended: {dead}\n{logs}")
            time.sleep(0.05)

    def ask(self, *command: str) -> str:
        """The output of one of Slurm's tools; empty when it fails."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=30,
            env=os.environ | {"SLURM_CONF": str(self.conf)},
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    def end_jobs(self) -> None:
        """Cancel every job and wait until none is left."""
        self.ask("scancel", *self.ask("squeue", "--noheader", "-o", "%A").split())
        self.wait("the last jobs", lambda: self.ask("squeue", "--noheader", "-o", "jobs%A") == "")

    def stop(self) -> None:
        """End every job and daemon."""
        with suppress(Exception):
            self.end_jobs()
        for name in reversed(list(self.daemons)):
            daemon = self.daemons.pop(name)
            daemon.terminate()
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in self.left_over():
            os.kill(pid, signal.SIGKILL)

    def left_over(self) -> list[int]:
        """Processes of jobs that look after steps; each belongs to no daemon."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                ours = f"SLURM_CONF={self.conf}".encode() in (process / "environ").read_bytes()
                if ours and (process / "cmdline").read_bytes().startswith(b"slurmstepd"):
                    found.append(int(process.name))
        return found


@contextmanager
def slurm_server(folder: Path) -> Iterator[SlurmServer]:
    """A cluster whose node is idle; ``SLURM_CONF`` of this process points to it meanwhile.

    Args:
        folder: for its state; the path must be short, since sockets are made there.

    Raises:
        Unavailable: Slurm is not installed here, or this is not root.
    """
    _require_slurm()
    host = socket.gethostname().partition(".")[0]
    for name in ("spool", "state"):
        (folder / name).mkdir(parents=True)
    server = SlurmServer(folder, folder / "slurm.conf")
    server.conf.write_text(
        CONF.format(host=host, folder=folder, ctld_port=free_port(), slurmd_port=free_port())
    )
    epilog = folder / "epilog"
    epilog.write_text(f"#!/bin/sh\nwhile [ -e {server.hold} ]; do sleep 0.1; done\n")
    epilog.chmod(0o700)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    before = os.environ.get("SLURM_CONF")
    try:
        server.start(
            "munged",
            *("munged", "--foreground", "--force", f"--key-file={key}"),
            *(f"--socket={folder}/munge.socket", f"--pid-file={folder}/munged.pid"),
            *(f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"),
        )
        server.wait("munged", (folder / "munge.socket").exists)
        server.start("slurmctld", "slurmctld", "-D", "-i")
        server.start("slurmd", "slurmd", "-D")
        server.wait("idle node", lambda: "idle" in server.ask("sinfo", "--noheader", "-o", "%T"))
        os.environ["SLURM_CONF"] = str(server.conf)
        yield server
    finally:
        os.environ.pop("SLURM_CONF", None)
        if before is not None:
            os.environ["SLURM_CONF"] = before
        server.stop()


@contextmanager
def slurm_or_skip(folder: Path) -> Iterator[SlurmServer]:
    """:func:`slurm_server` for a fixture: without Slurm its tests are skipped, in CI they fail."""
    try:
        _require_slurm()
    except Unavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    with slurm_server(folder) as server:
        yield server


@contextmanager
def runners_of(server: SlurmServer, folder: Path) -> Iterator[Callable[..., SlurmRunner]]:
    """Makes runners of the cluster, with more settings; their jobs end with the context."""
    made: list[SlurmRunner] = []

    def make(**more: Any) -> SlurmRunner:
        settings = SlurmSettings(**{**server.settings(folder), **more})
        made.append(SlurmRunner("cluster", settings))
        return made[-1]

    yield make
    for runner in made:
        runner.close()
    server.end_jobs()


def step_of(fn: Callable[[str], Any], **fields: Any) -> StepSpec:
    """A small step, with its output's folder."""
    step = StepSpec("step", fn=fn, **({"resources": SMALL} | fields))
    Path(step.output_path).mkdir(parents=True, exist_ok=True)
    return step


def submit(runner: SlurmRunner, step: StepSpec, name: str = "step-1") -> SlurmJob:
    """Submit a step without a driver."""
    function = getattr(step.fn, "fn", step.fn)
    assert function is not None
    record = step_record(step, None)
    call = StepCall(function, step.name_with_hash, step.output_path, name, record)
    return runner.submit(name, call, Request.of(step))


def end(job: SlurmJob) -> JobStatus:
    """How the job has ended."""
    status = job.wait(GUARD_S)
    assert status.state.final, f"still {status}; {job.trouble}"
    return status


def log_of(job: SlurmJob) -> str:
    """All that an ended job has written."""
    return "".join(text for _, text in job.logs())


def _require_slurm() -> None:
    if os.geteuid() != 0:
        raise Unavailable("Slurm's daemons need root here")
    if missing := [name for name in DAEMONS if shutil.which(name) is None]:
        raise Unavailable(f"no {', '.join(missing)}: run scripts/install-debian")
