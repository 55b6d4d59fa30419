"""What the tests of the cache share: small steps, raw files, snapshots, and other processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from helpers.processes import GUARD_S
from marin_dagster.cache import Attempt, OutputDir, StepCache, read_record
from marin_dagster.cache.lease import LocalLock
from marin_dagster.cache.previous_outputs import PreviousOutputs
from marin_dagster.cache.reasons import Reasons, find_reasons
from marin_dagster.steps import StepSpec

STATUS, LOCK, RECORD, INFO = (
    ".executor_status",
    ".executor_status.lock",
    ".artifact.json",
    ".executor_info",
)


def nothing(output_path: str) -> None:
    """A step's function that does nothing."""


def make(name: str, *deps: Any, **fields: Any) -> StepSpec:
    """A step below ``MARIN_PREFIX`` that can be built."""
    return StepSpec(name, **{"deps": deps, "fn": nothing} | fields)


def begin(step: StepSpec, cache: StepCache | None = None, **options: Any) -> Attempt:
    """An attempt, which is expected."""
    found = (cache or StepCache()).begin(step, **options)
    assert isinstance(found, Attempt)
    return found


def build(step: StepSpec, result: Any = None, cache: StepCache | None = None) -> StepSpec:
    """Build a step's output from begin to commit."""
    attempt = begin(step, cache)
    attempt.result = result
    attempt.commit()
    return step


def why(step: StepSpec, earlier: PreviousOutputs | None = None, **more: Any) -> Reasons:
    """Why an attempt at the step is begun."""
    force = more.pop("force", False)
    attempt = begin(step, force=force)
    try:
        return find_reasons(attempt, earlier or PreviousOutputs(), **more)
    finally:
        attempt.give_back()


def put(step: StepSpec, name: str, content: str | bytes) -> None:
    """Write a file into a local output, as some other program would."""
    folder = Path(step.output_path)
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath(name).write_bytes(content if isinstance(content, bytes) else content.encode())


def finish(step: StepSpec) -> None:
    """Mark a local output as finished, as whoever made it would."""
    put(step, STATUS, "SUCCESS")


def get(step: StepSpec, name: str) -> str | None:
    """A file of a local output; None when there is none."""
    path = Path(step.output_path, name)
    return path.read_text() if path.exists() else None


def result_of(step: StepSpec) -> dict[str, Any]:
    """What the record states that the function returned."""
    record = read_record(OutputDir.at(step.output_path))
    assert record is not None
    return record.result or {}


def lease(worker_id: str = "foreign-1", age_s: float = 0.0) -> str:
    """A lock file's content, last renewed some seconds ago."""
    return json.dumps({"worker_id": worker_id, "timestamp": time.time() - age_s})


def tree(folder: str | Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder with its content and time of change, and every folder."""
    return {
        str(path.relative_to(folder)): (
            path.read_bytes() if path.is_file() else b"",
            path.stat().st_mtime_ns,
        )
        for path in sorted(Path(folder).rglob("*"))
    }


def python(
    code: str,
    *arguments: str,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    wrapper: tuple[str, ...] = (),
) -> str:
    """Run code in another process and return what it prints; its failure is the test's."""
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env=dict(env or os.environ),
        capture_output=True,
        text=True,
        timeout=GUARD_S,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def state(step: StepSpec) -> tuple[str | None, bool, bool]:
    """Status, whether there is a lock, whether there is a record."""
    return get(step, STATUS), get(step, LOCK) is not None, get(step, RECORD) is not None


def log_writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every file that the cache writes or removes from now on, in order."""
    log: list[str] = []
    write, release = OutputDir.write, LocalLock.release

    def logged_write(self: OutputDir, name: str, data: bytes) -> None:
        log.append(f"{name} {data.decode()}" if name == STATUS else name)
        write(self, name, data)

    def logged_release(self: LocalLock, worker_id: str) -> None:
        log.append("release")
        release(self, worker_id)

    monkeypatch.setattr(OutputDir, "write", logged_write)
    monkeypatch.setattr(LocalLock, "release", logged_release)
    return log
