"""GPUs of this machine: which of them this process may use, and how a step takes some.

A GPU is taken by a lock on a file in ``/tmp``, so that all runs on the machine share the GPUs. The
kernel frees the lock when the process that holds it dies.
"""

import fcntl
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
_LOCKS = Path("/tmp")
"""Not ``TMPDIR``, which is often different for each run."""
_DEVICE = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")


def gpus_wanted(resources: Any) -> int:
    """How many GPUs a ``ResourceConfig`` asks for; 0 for None."""
    if resources is None or resources.device.kind != "gpu":
        return 0
    count: int = resources.device.count
    return count


def visible_gpus(environment: Mapping[str, str], limit: int | None) -> list[str]:
    """The GPUs that a process with this environment sees, by their ``CUDA_VISIBLE_DEVICES`` names.

    Like CUDA, it ignores the variable's list from the first invalid entry on.

    Args:
        environment: the environment.
        limit: the most GPUs to use. Without the variable, the number of GPUs; None counts them.
    """
    if VISIBLE not in environment:
        found = sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))
        return [str(number) for number in range(found if limit is None else limit)]
    devices: list[str] = []
    for entry in environment[VISIBLE].split(","):
        if _DEVICE.fullmatch(entry.strip()) is None:
            break
        devices.append(entry.strip())
    return list(dict.fromkeys(devices))[:limit]


def take_gpus(devices: Sequence[str], count: int) -> dict[str, int] | None:
    """Take ``count`` of these GPUs; None, and none is taken, if fewer are free.

    Returns:
        The descriptor of each GPU's lock, for :func:`free_gpus`.

    Raises:
        OSError: a lock file cannot be opened.
    """
    taken: dict[str, int] = {}
    try:
        for device in devices:
            if len(taken) == count:
                break
            descriptor = _locked(device)
            if descriptor is not None:
                taken[device] = descriptor
    except BaseException:
        free_gpus(taken)
        raise
    if len(taken) < count:
        free_gpus(taken)
        return None
    return taken


def free_gpus(taken: Mapping[str, int]) -> None:
    """Free GPUs."""
    for descriptor in taken.values():
        # Closing is not enough: a process forked from this one may hold it open.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _locked(device: str) -> int | None:
    path = _LOCKS / f"marin-dagster-gpu-{device.replace('/', '-')}.lock"
    with suppress(FileExistsError):
        if not path.exists():
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY)
            os.fchmod(descriptor, 0o644)  # for every user, whatever this one's umask
            os.close(descriptor)
    # Read-only: enough for a lock, and /tmp does not allow writing another user's file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor
