"""Ids of workers, from which another process of the same machine can see that a worker is dead."""

import hashlib
import os
import re
import socket
import uuid
from pathlib import Path

_PROC = Path("/proc")
_ID = re.compile(r".+-(?P<pid>\d+)-(?P<machine>[0-9a-f]{12})\.(?P<start>\d+)-[0-9a-f]{8}")
_DEAD_STATES = ("Z", "X")


def new_worker_id() -> str:
    """An id for one attempt: host, process, the process's start, and 8 random hex digits.

    Marin's host and thread id is the same in forked processes; every holder needs a unique id. To
    Marin, the id is any text. Without ``/proc``, the start is left out.
    """
    pid = os.getpid()
    machine, start = _machine(), _start(pid)
    process = f"-{machine}.{start}" if machine and start else ""
    return f"{socket.gethostname()}-{pid}{process}-{uuid.uuid4().hex[:8]}"


def is_certainly_dead(worker_id: str) -> bool:
    """Whether the process of a worker has ended, as far as this process can know.

    False unless the worker ran on this machine since its last boot, and in this process's PID
    namespace. A process that is stopped or that waits lives.
    """
    found = _ID.fullmatch(worker_id)
    if found is None or found["machine"] != _machine():
        return False
    pid = int(found["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # it is another user's
    start = _start(pid)
    # Its number may belong to a younger process by now.
    return start is not None and (start != found["start"] or _has_ended(pid))


def _machine() -> str | None:
    """The same for all processes that see each other's numbers; None where that is unknown."""
    try:
        # In a container, /proc may show another namespace's processes.
        if os.readlink(_PROC / "self") != str(os.getpid()):
            return None
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return None
    name = f"{boot} {namespace}"
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def _start(pid: int) -> str | None:
    """When a process started, in the kernel's ticks since the boot; None if that is not visible."""
    fields = _fields(pid)
    return fields[19] if len(fields) > 19 else None


def _has_ended(pid: int) -> bool:
    """Whether a process is dead although its parent has not asked for its exit code yet."""
    fields = _fields(pid)
    # The main thread may end before others do.
    return bool(fields) and fields[0] in _DEAD_STATES and fields[17] in ("0", "1")


def _fields(pid: int) -> list[str]:
    """The fields of ``/proc/<pid>/stat`` after the program's name, which may contain anything."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
