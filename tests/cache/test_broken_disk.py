"""Disks that are full or read-only: an error that names the file, and never a success."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.cache import LOCK, RECORD, STATUS, build, get, make, python, tree

pytestmark = pytest.mark.slow

PRELUDE = """
import ctypes, logging, os, resource, subprocess, sys
from pathlib import Path
from marin_dagster.cache import CacheState, LeaseTiming, StepCache
from marin_dagster.errors import StoreError
from marin_dagster.steps import StepSpec

step = StepSpec("step", fn=print)
folder = Path(step.output_path)

def names():
    return sorted(path.name for path in folder.iterdir())

def refused(action):
    try:
        action()
    except StoreError as error:
        assert step.output_path in str(error), error
    else:
        raise AssertionError("no StoreError")
"""

# No file may grow past the limit: every write of a longer record fails half-way.
LIMITED = (
    PRELUDE
    + """
attempt = StepCache().begin(step)
attempt.result = {"text": "x" * 20_000}
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
refused(attempt.commit)
"""
)


def test_a_record_that_can_only_be_written_in_part_leaves_a_failure() -> None:
    python(LIMITED)
    step = make("step")
    assert (get(step, STATUS), get(step, LOCK), get(step, RECORD)) == ("FAILED", None, None)
    assert sorted(path.name for path in Path(step.output_path).iterdir()) == [
        ".executor_info",
        STATUS,
    ]


def test_a_record_that_can_only_be_written_in_part_leaves_an_earlier_one_whole() -> None:
    step = build(make("step"), result={"n": 1})
    record = get(step, RECORD)
    python(LIMITED.replace("begin(step)", "begin(step, force=True)"))
    assert (get(step, STATUS), get(step, LOCK)) == ("FAILED", None)
    assert get(step, RECORD) == record


# A file system of 64 KiB, in a mount namespace that only this process sees.
SMALL_DISK = """
store = Path(os.environ["MARIN_PREFIX"])
store.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(store)], check=True)

def fill():
    with open(store / "filler", "ab", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            pass
"""

FULL = (
    PRELUDE
    + SMALL_DISK
    + """
attempt = StepCache().begin(step)
attempt.result = {"n": 1}
fill()
refused(attempt.commit)

# No space even for FAILED: RUNNING, but nobody holds it, so the next worker takes over at once.
assert (folder / ".executor_status").read_text() in ("RUNNING", "FAILED")
assert names() == [".executor_info", ".executor_status"], names()
assert StepCache().look_up(step).state in (CacheState.MISS, CacheState.FAILED)

(store / "filler").unlink()
again = StepCache().begin(step, wait=None)
again.commit()
assert names() == [".artifact.json", ".executor_info", ".executor_status"], names()
assert StepCache().look_up(step).state is CacheState.HIT
"""
)

FULL_AT_THE_START = (
    PRELUDE
    + SMALL_DISK
    + """
fill()
refused(lambda: StepCache().begin(step))
left = {path.name: path.read_bytes() for path in folder.glob(".*")} if folder.exists() else {}
# A lock file without content does not count as a lock.
assert left in ({}, {".executor_status.lock": b""}), left
(store / "filler").unlink()
StepCache().begin(step, wait=None).commit()
assert StepCache().look_up(step).state is CacheState.HIT
"""
)

FULL_FOR_A_RENEWAL = (
    PRELUDE
    + SMALL_DISK
    + """
attempt = StepCache(LeaseTiming(refresh_s=0.01, stale_s=3600)).begin(step)
fill()
lock = folder / ".executor_status.lock"
for _ in range(5):
    seen = lock.read_bytes()
    while lock.read_bytes() in (seen, b""):
        pass
(store / "filler").unlink()
attempt.commit()
assert StepCache().look_up(step).state is CacheState.HIT
"""
)

UNSHARE = ("unshare", "--map-root-user", "--mount")


def may_mount(folder: Path) -> bool:
    """Whether this process may mount a file system that nobody else sees."""
    if not shutil.which("unshare"):
        return False
    command = [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "code",
    [FULL, FULL_AT_THE_START, FULL_FOR_A_RENEWAL],
    ids=["at the commit", "at the start", "for a renewal"],
)
def test_a_full_disk_gives_no_success_and_the_next_attempt_finishes(
    code: str, tmp_path: Path
) -> None:
    if not may_mount(tmp_path):
        pytest.skip("needs a mount namespace; records cut short are shown without one above")
    python(code, wrapper=UNSHARE)


# Root without the capability to override permissions: chmod then holds for root, too.
READ_ONLY = (
    PRELUDE
    + """
root = Path(os.environ["MARIN_PREFIX"])
mode = sys.argv[1]
assert not os.access(root, os.W_OK)
if mode == "nothing there":
    refused(lambda: StepCache().begin(step))
elif mode == "served":
    assert StepCache().look_up(step).state is CacheState.HIT
    assert StepCache().begin(step).record.result == {"n": 1}
    refused(lambda: StepCache().begin(step, force=True))
elif mode == "unreadable":
    refused(lambda: StepCache().look_up(step))
    refused(lambda: StepCache().begin(step))
"""
)

WITHOUT_OVERRIDE = """
import ctypes, os, sys
prctl = ctypes.CDLL(None, use_errno=True).prctl
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; refused to a user who has none anyway
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""


def python_that_obeys_permissions(code: str, *arguments: str) -> None:
    python(WITHOUT_OVERRIDE, code, *arguments)


@pytest.mark.parametrize("mode", ["nothing there", "served", "unreadable"])
def test_a_store_that_may_not_be_written_is_an_error_and_stays_as_it_is(
    mode: str, store: Path
) -> None:
    store.mkdir()
    if mode != "nothing there":
        build(make("step"), result={"n": 1})
    before = tree(store)
    folders = [path for path in (store, *store.rglob("*")) if path.is_dir()]
    try:
        for folder in folders:
            folder.chmod(0o500)
        if mode == "unreadable":
            Path(make("step").output_path, STATUS).chmod(0)
        python_that_obeys_permissions(READ_ONLY, mode)
    finally:
        for folder in folders:
            folder.chmod(0o700)
    if mode == "unreadable":
        Path(make("step").output_path, STATUS).chmod(0o600)
    assert tree(store) == before


READ_ONLY_AT_THE_COMMIT = (
    PRELUDE
    + """
attempt = StepCache().begin(step)
for file in folder.iterdir():
    file.chmod(0o400)
folder.chmod(0o500)
refused(attempt.commit)
assert (folder / ".executor_status").read_text() == "RUNNING"
attempt.fail()
"""
)


def test_an_output_that_turns_read_only_while_it_is_built_is_a_store_error() -> None:
    try:
        python_that_obeys_permissions(READ_ONLY_AT_THE_COMMIT)
    finally:
        Path(make("step").output_path).chmod(0o700)
    assert get(make("step"), RECORD) is None
    assert os.listdir(make("step").output_path)
