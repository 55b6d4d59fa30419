"""A process that forks while it holds leases: parent and child do not disturb each other."""

import os
from pathlib import Path

import pytest

from helpers.cache import LOCK, STATUS, get, make, python

pytestmark = pytest.mark.slow

FORK_WHILE_A_LEASE_IS_HELD = """
import json, os, signal, sys, threading, time, traceback
from pathlib import Path
from marin_dagster.cache import LeaseTiming, StepCache
from marin_dagster.cache.heartbeat import keeper
from marin_dagster.steps import StepSpec

cache = StepCache(LeaseTiming(refresh_s=0.01, stale_s=3600))
nothing = lambda output_path: None

def threads():
    return [t for t in threading.enumerate() if t.name == "marin-lease-keeper"]

def wait_for_renewals(step, count=3):
    lock = Path(step.output_path, ".executor_status.lock")
    for _ in range(count):
        seen = lock.read_bytes()
        while lock.read_bytes() in (seen, b""):
            time.sleep(0.001)

mine, childs = StepSpec("parent", fn=nothing), StepSpec("child", fn=nothing)
attempt = cache.begin(mine)
wait_for_renewals(mine)

# Another thread is inside the keeper at the very moment of the fork.
inside, leave = threading.Event(), threading.Event()
def stay():
    with keeper._changed:
        inside.set()
        leave.wait()
threading.Thread(target=stay).start()
inside.wait()

pid = os.fork()
if pid == 0:
    signal.alarm(60)
    code = 1
    try:
        assert not threads(), "the parent's thread is not in the child"
        own = cache.begin(childs)
        assert own._lease.worker_id != attempt._lease.worker_id
        assert len(threads()) == 1
        wait_for_renewals(childs)
        own.commit()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
leave.set()
_, state = os.waitpid(pid, 0)
assert state == 0, state
wait_for_renewals(mine)
attempt.commit()
[t.join() for t in threads()]
"""


def test_a_child_has_a_keeper_of_its_own_and_the_parents_lease_goes_on() -> None:
    python(FORK_WHILE_A_LEASE_IS_HELD)
    for name in ("parent", "child"):
        assert get(make(name), STATUS) == "SUCCESS"
        assert get(make(name), LOCK) is None


FORK_INSIDE_THE_FILE_LOCK = """
import fcntl, os, sys
from marin_dagster.cache import OutputDir, LeaseTiming
from marin_dagster.cache import lease
from marin_dagster.cache.lease import LeaseWatch, LocalLock

folder, operation = sys.argv[1:]
lock = LocalLock(OutputDir.at(folder))
watch = LeaseWatch(LeaseTiming())
if operation != "acquire":
    assert lock.acquire("me", watch)

# parse_lease runs while the file is locked: fork there, and let the child live on.
real, children = lease.parse_lease, []
reader, writer = os.pipe()
def parse_and_fork(content):
    if not children:
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        children.append(pid)
    return real(content)
lease.parse_lease = parse_and_fork

{"acquire": lambda: lock.acquire("me", watch),
 "refresh": lambda: lock.refresh("me"),
 "read": lock.read}[operation]()
assert children
try:
    with open(lock.path, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
finally:
    os.write(writer, b"x")
    os.waitpid(children[0], 0)
"""


@pytest.mark.parametrize("operation", ["acquire", "refresh", "read"])
def test_a_child_forked_inside_the_file_lock_does_not_keep_it_locked(
    operation: str, tmp_path: Path
) -> None:
    # Long-lived children by fork, such as data loaders, are common inside a step's function.
    python(FORK_INSIDE_THE_FILE_LOCK, str(tmp_path), operation)


FORK_IN_A_STEP_ON_S3 = """
import os, signal, traceback
from marin_dagster.cache import StepCache
from marin_dagster.errors import StoreError
from marin_dagster.steps import StepSpec

nothing = lambda output_path: None
attempt = StepCache().begin(StepSpec("parent", fn=nothing))
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    code = 1
    try:
        StepCache().begin(StepSpec("child", fn=nothing)).commit()
        code = 0
    except StoreError:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
_, state = os.waitpid(pid, 0)
assert state == 0, f"the child ended with {state}; 14 is the alarm: it hung"
attempt.commit()
print(StepCache().look_up(StepSpec("parent")))
"""


def test_a_child_in_a_bucket_builds_or_says_that_it_cannot_but_never_hangs(s3_prefix: str) -> None:
    found = python(FORK_IN_A_STEP_ON_S3, env={**os.environ, "MARIN_PREFIX": s3_prefix})
    assert "CacheState.HIT" in found
