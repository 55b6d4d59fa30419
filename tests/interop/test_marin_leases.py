"""Leases: each side sees the other's, waits for a live one and takes over a dead one."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from marin.execution import step_status
from marin.execution.artifact import read_record as marin_read_record
from marin.execution.artifact import write_artifact as marin_write_artifact
from marin.execution.step_runner import run_step
from marin.execution.step_spec import StepSpec as MarinStep
from marin.execution.step_status import StatusFile, should_run
from marin_peer import (
    Calls,
    age_lock,
    is_locked,
    lock_url,
    marin_lock,
    marin_status,
    read_json,
    write_file,
)
from marin_processes import (
    PATIENCE_S,
    build_with_marin,
    build_with_ours,
    run_in_dagster,
    spawn,
    start,
)
from rigging.filesystem.distributed_lock import HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, Lease
from rigging.filesystem.distributed_lock import LeaseLostError as MarinLeaseLostError

import marin_dagster.cache.lease as our_lease
from marin_dagster import StepCache, StepRunner
from marin_dagster.cache import Attempt, CacheState, Hit, LeaseTiming, OutputDir, read_record
from marin_dagster.cache.locks import lock_for
from marin_dagster.errors import LeaseLostError
from marin_dagster.runners import run_inline

pytestmark = pytest.mark.interop

not_in_a_bucket = pytest.mark.parametrize("prefix", ["disk", "file-url", "memory"], indirect=True)


def begin(step: Any, **options: Any) -> Attempt:
    """Get hold of an output that nobody holds."""
    attempt = StepCache().begin(step, wait=must_not_wait, **options)
    assert isinstance(attempt, Attempt)
    return attempt


def must_not_wait(seconds: float) -> None:
    raise AssertionError("waited for a worker that is gone")


def build(attempt: Attempt) -> None:
    """Finish an attempt as our executor does."""
    attempt.result = run_inline(attempt.step)
    attempt.commit()


@pytest.fixture
def step(prefix: str, calls: Calls) -> MarinStep:
    """One step on each kind of store; both sides take it as it is."""
    return MarinStep("train", output_path_prefix=prefix, fn=calls.function("train", {"n": 1}))


@pytest.fixture
def on_marins_wait(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], list[float]]:
    """Do something when Marin waits for another worker; returns the waits as they happen."""

    def install(action: Callable[[], None]) -> list[float]:
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            assert len(waits) < 100, "Marin waits for ever"
            action()

        monkeypatch.setattr(step_status, "sleep", sleep)
        return waits

    return install


# Seeing -------------------------------------------------------------------------------------------


def test_lease_times_are_marins() -> None:
    assert LeaseTiming().refresh_s == HEARTBEAT_INTERVAL
    assert LeaseTiming().stale_s == HEARTBEAT_TIMEOUT


def test_marin_reads_our_lease_while_we_hold_it(step: MarinStep) -> None:
    attempt = begin(step)
    holder = StepCache().look_up(step).owner
    lock = marin_lock(step.output_path)
    assert holder
    assert lock.active_holder_id() == holder
    generation, lease = lock._read_with_generation()
    assert generation != 0
    assert isinstance(lease, Lease)
    assert lease.worker_id == holder
    assert isinstance(lease.timestamp, float)
    assert not lease.is_stale()
    assert set(read_json(step.output_path, ".executor_status.lock")) == {"worker_id", "timestamp"}
    assert not lock.try_acquire()
    lock.release()
    assert lock.active_holder_id() == holder
    assert StatusFile(step.output_path, "reader").active_lock_holder() == holder
    assert marin_status(step.output_path) == "RUNNING"

    build(attempt)
    assert lock.active_holder_id() is None
    assert lock._read_with_generation() == (0, None)
    assert marin_status(step.output_path) == "SUCCESS"
    assert not is_locked(step.output_path)


def test_we_read_marins_lease_while_it_holds_it(step: MarinStep) -> None:
    peer = StatusFile(step.output_path, "marin-host-1")
    assert should_run(peer, step.name_with_hash)
    found = StepCache().look_up(step)
    assert (found.state, found.owner) == (CacheState.RUNNING, "marin-host-1")
    peer.refresh_lock()
    assert StepCache().look_up(step).owner == "marin-host-1"
    peer.write_status("FAILED")
    peer.release_lock()
    assert StepCache().look_up(step).state is CacheState.FAILED


@not_in_a_bucket
def test_our_failed_attempt_frees_the_output_for_marin(step: MarinStep, calls: Calls) -> None:
    begin(step).fail()
    assert marin_status(step.output_path) == "FAILED"
    assert not is_locked(step.output_path)
    run_step(step)
    assert marin_status(step.output_path) == "SUCCESS"
    assert calls.take() == ["train"]


def test_our_renewals_are_seen_by_marin_and_never_look_like_no_lock(
    store: Any, calls: Calls
) -> None:
    step = MarinStep("train", output_path_prefix=str(store), fn=calls.function("train"))
    attempt = StepCache(LeaseTiming(refresh_s=0.001)).begin(step)
    assert isinstance(attempt, Attempt)
    lock = marin_lock(step.output_path)
    seen: set[float] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < 50 and time.monotonic() < deadline:
        _, lease = lock._read_with_generation()
        assert lease is not None
        seen.add(lease.timestamp)
    assert len(seen) == 50
    build(attempt)
    assert marin_status(step.output_path) == "SUCCESS"
    assert not is_locked(step.output_path)


def test_marins_renewals_are_seen_by_us_and_never_look_like_no_lock(
    store: Any, calls: Calls
) -> None:
    step = MarinStep("train", output_path_prefix=str(store), fn=calls.function("train"))
    peer = StatusFile(step.output_path, "marin-host-1")
    assert should_run(peer, step.name_with_hash)
    stop = threading.Event()

    def renew() -> None:
        while not stop.is_set():
            peer.refresh_lock()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        states = {StepCache().look_up(step).state for _ in range(500)}
    finally:
        stop.set()
        thread.join()
    assert states == {CacheState.RUNNING}


# Nobody leaves an empty object in a bucket, and Marin cannot read one.
@not_in_a_bucket
def test_an_empty_lock_file_is_no_lock_for_either(step: MarinStep, calls: Calls) -> None:
    for build_it in (run_step, lambda each: build(begin(each))):
        write_file(step.output_path, ".executor_status", "RUNNING")
        write_file(step.output_path, ".executor_status.lock", "")
        assert marin_lock(step.output_path).active_holder_id() is None
        assert StepCache().look_up(step).state is CacheState.MISS
        build_it(step)
        assert calls.take() == ["train"]
        assert not is_locked(step.output_path)


# Waiting ------------------------------------------------------------------------------------------


def test_we_wait_for_marins_live_lease_and_serve_its_success(step: MarinStep, calls: Calls) -> None:
    peer = StatusFile(step.output_path, "marin-host-1")
    assert should_run(peer, step.name_with_hash)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        assert marin_lock(step.output_path).active_holder_id() == "marin-host-1"
        if len(waits) < 3:
            peer.refresh_lock()
            return
        marin_write_artifact({"by": "marin"}, step.output_path)
        peer.write_status("SUCCESS")
        peer.release_lock()

    outcome = StepCache().begin(step, wait=wait)
    assert waits == [LeaseTiming().poll_s] * 3
    assert isinstance(outcome, Hit)
    assert outcome.record is not None
    assert outcome.record.result == {"by": "marin"}
    assert calls.take() == []
    assert not is_locked(step.output_path)


def test_marin_waits_for_our_live_lease_and_serves_our_success(
    step: MarinStep, calls: Calls, on_marins_wait: Callable[..., list[float]]
) -> None:
    attempt = begin(step)

    def act() -> None:
        if len(waits) < 3:
            attempt._lease.check()
        else:
            build(attempt)

    waits = on_marins_wait(act)
    run_step(step)
    assert waits == [5, 5, 5]
    # Once, by us.
    assert calls.take() == ["train"]
    record = marin_read_record(step.output_path)
    assert record is not None
    assert record.result == {"n": 1}
    assert not is_locked(step.output_path)


@not_in_a_bucket
def test_when_the_marin_worker_that_we_wait_for_fails_we_build(
    step: MarinStep, calls: Calls
) -> None:
    peer = StatusFile(step.output_path, "marin-host-1")
    assert should_run(peer, step.name_with_hash)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        peer.write_status("FAILED")
        peer.release_lock()

    attempt = StepCache().begin(step, wait=wait)
    assert isinstance(attempt, Attempt)
    assert len(waits) == 1
    build(attempt)
    assert marin_status(step.output_path) == "SUCCESS"
    assert calls.take() == ["train"]


@not_in_a_bucket
def test_when_our_worker_that_marin_waits_for_fails_marin_builds(
    step: MarinStep, calls: Calls, on_marins_wait: Callable[..., list[float]]
) -> None:
    attempt = begin(step)
    waits = on_marins_wait(attempt.fail)
    run_step(step)
    assert len(waits) == 1
    assert marin_status(step.output_path) == "SUCCESS"
    assert calls.take() == ["train"]


def test_a_success_is_served_even_while_the_other_side_still_holds_the_lock(
    step: MarinStep, calls: Calls, on_marins_wait: Callable[..., list[float]]
) -> None:
    waits = on_marins_wait(lambda: None)
    for lock_holder in ("marin-host-1", "ours-1-0a1b2c3d"):
        assert marin_lock(step.output_path, lock_holder).try_acquire()
        write_file(step.output_path, ".executor_status", "SUCCESS")
        run_step(step)
        assert isinstance(StepCache().begin(step, wait=must_not_wait), Hit)
        marin_lock(step.output_path, lock_holder).release()
    assert waits == []
    assert calls.take() == []


class Interrupted(list[Any]):
    """Dependencies that somebody else uses the time of, when we ask whether they are finished."""

    meanwhile: Callable[[], None] | None = None

    def __iter__(self) -> Iterator[Any]:
        action, self.meanwhile = self.meanwhile, None
        if action is not None:
            action()
        return super().__iter__()


def test_a_success_that_marin_writes_between_our_look_and_our_lease_is_served(
    step: MarinStep, calls: Calls
) -> None:
    deps = Interrupted()
    ours = MarinStep(
        "train", output_path_prefix=step.output_path_prefix, deps=deps, fn=calls.function("ours")
    )
    assert ours.output_path == step.output_path
    deps.meanwhile = lambda: run_step(step)
    outcome = StepCache().begin(ours, wait=must_not_wait)
    assert deps.meanwhile is None
    assert isinstance(outcome, Hit)
    assert calls.take() == ["train"]
    assert not is_locked(step.output_path)
    assert marin_status(step.output_path) == "SUCCESS"


def test_a_success_that_we_write_between_marins_look_and_its_lease_is_served(
    step: MarinStep, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire = StatusFile.try_acquire_lock

    def after_us(file: StatusFile) -> bool:
        build(begin(step))
        return acquire(file)

    monkeypatch.setattr(StatusFile, "try_acquire_lock", after_us)
    run_step(step)
    # Once, by us.
    assert calls.take() == ["train"]
    assert not is_locked(step.output_path)
    assert marin_status(step.output_path) == "SUCCESS"


# Taking over --------------------------------------------------------------------------------------


def test_our_stale_lease_is_taken_over_by_marin_at_once_and_we_touch_nothing_afterwards(
    step: MarinStep, calls: Calls, on_marins_wait: Callable[..., list[float]]
) -> None:
    attempt = begin(step)
    waits = on_marins_wait(lambda: None)
    age_lock(step.output_path)
    assert marin_lock(step.output_path).active_holder_id() is None
    run_step(step)
    assert waits == []
    assert calls.take() == ["train"]

    attempt.result = {"by": "the loser"}
    with pytest.raises(LeaseLostError):
        attempt.commit()
    assert marin_status(step.output_path) == "SUCCESS"
    record = marin_read_record(step.output_path)
    assert record is not None
    assert record.result == {"n": 1}
    assert not is_locked(step.output_path)


def test_our_lost_attempt_leaves_marins_running_one_alone(step: MarinStep, calls: Calls) -> None:
    attempt = begin(step)
    age_lock(step.output_path)
    peer = StatusFile(step.output_path, "marin-host-1")
    assert should_run(peer, step.name_with_hash)
    attempt.result = {"by": "the loser"}
    with pytest.raises(LeaseLostError, match="marin-host-1"):
        attempt.commit()
    assert peer.active_lock_holder() == "marin-host-1"
    assert marin_status(step.output_path) == "RUNNING"
    assert marin_read_record(step.output_path) is None
    peer.refresh_lock()
    peer.release_lock()


def test_marins_stale_lease_is_taken_over_by_us_at_once_and_marin_loses_it(
    step: MarinStep, calls: Calls
) -> None:
    peer = StatusFile(step.output_path, "marin-host-1")
    assert should_run(peer, step.name_with_hash)
    age_lock(step.output_path)
    assert StepCache().look_up(step).state is CacheState.MISS
    attempt = begin(step)
    with pytest.raises(MarinLeaseLostError):
        peer.refresh_lock()
    peer.release_lock()
    assert peer.active_lock_holder() == StepCache().look_up(step).owner != "marin-host-1"
    build(attempt)
    assert marin_status(step.output_path) == "SUCCESS"
    assert calls.take() == ["train"]
    assert not is_locked(step.output_path)


@pytest.mark.parametrize("age", [60.0, 120.0, -60.0])
def test_the_same_ages_of_a_lease_are_stale_to_both(
    age: float, step: MarinStep, calls: Calls
) -> None:
    assert marin_lock(step.output_path, "somebody").try_acquire()
    write_file(step.output_path, ".executor_status", "RUNNING")
    age_lock(step.output_path, age)
    alive = marin_lock(step.output_path).active_holder_id() is not None
    assert alive == (age < HEARTBEAT_TIMEOUT)
    assert (StepCache().look_up(step).state is CacheState.RUNNING) == alive


@not_in_a_bucket
def test_running_without_a_lease_is_taken_over_at_once_by_either(
    step: MarinStep, calls: Calls, on_marins_wait: Callable[..., list[float]]
) -> None:
    waits = on_marins_wait(lambda: None)
    write_file(step.output_path, ".executor_status", "RUNNING")
    run_step(step)
    write_file(step.output_path, ".executor_status", "RUNNING")
    build(begin(step))
    assert waits == []
    assert calls.take() == ["train", "train"]


def test_in_a_bucket_a_lease_that_marin_takes_after_we_looked_is_not_overwritten(
    s3_prefix: str, calls: Calls
) -> None:
    step = MarinStep("train", output_path_prefix=s3_prefix, fn=calls.function("train"))

    class Between(our_lease.LeaseWatch):
        """Marin is faster than our answer to what we have just read."""

        def is_live(self, lease: our_lease.Lease | None) -> bool:
            alive = super().is_live(lease)
            assert marin_lock(step.output_path, "marin-host-1").try_acquire()
            return alive

    timing = LeaseTiming()
    lock = lock_for(OutputDir.at(step.output_path), timing)
    assert not lock.acquire("ours-1-0a1b2c3d", Between(timing))
    assert marin_lock(step.output_path).active_holder_id() == "marin-host-1"
    with pytest.raises(LeaseLostError, match="marin-host-1"):
        lock.refresh("ours-1-0a1b2c3d")
    lock.release("ours-1-0a1b2c3d")
    assert marin_lock(step.output_path).active_holder_id() == "marin-host-1"


def test_in_a_bucket_our_lease_taken_after_marin_looked_is_not_overwritten(
    s3_prefix: str, calls: Calls
) -> None:
    step = MarinStep("train", output_path_prefix=s3_prefix, fn=calls.function("train"))
    peer = marin_lock(step.output_path, "marin-host-1")
    generation, lease = peer._read_with_generation()
    assert lease is None
    attempt = begin(step)
    with pytest.raises(FileExistsError):
        peer._write(Lease("marin-host-1", time.time()), generation)
    build(attempt)
    assert not is_locked(step.output_path)


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_where_marin_settles_and_reads_back_we_do_so_too(
    scheme: str, tmp_path: Any, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Marin locks plain paths with flock, but a file:// URL as any unknown store.
    prefix = f"{scheme}://{tmp_path}/store"
    step = MarinStep("train", output_path_prefix=prefix, fn=calls.function("train"))
    peer = marin_lock(step.output_path, "marin-host-1")
    assert peer._read_with_generation() == (0, None)
    settles: list[float] = []

    def settle(seconds: float) -> None:
        # Marin, which has seen no lock either, writes within the settle time.
        settles.append(seconds)
        lease = {"worker_id": "marin-host-1", "timestamp": time.time()}
        write_file(step.output_path, ".executor_status.lock", json.dumps(lease))

    clock = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=settle)
    monkeypatch.setattr(our_lease, "time", clock)
    timing = LeaseTiming()
    lock = lock_for(OutputDir.at(step.output_path), timing)
    assert not lock.acquire("ours-1-0a1b2c3d", our_lease.LeaseWatch(timing))
    assert settles == [timing.settle_s]


# Real processes -----------------------------------------------------------------------------------


@pytest.fixture
def local_step(store: Any, calls: Calls) -> MarinStep:
    """The step that the worker processes build, with a function of this process."""
    return MarinStep("train", output_path_prefix=str(store), fn=calls.function("train"))


def start_peer(target: Callable[..., None], step: Any) -> tuple[Any, Any]:
    """A process that is inside the step's function, and the event that lets it finish."""
    started, finish = spawn.Event(), spawn.Event()
    peer = start(target, step.output_path_prefix, started, finish)
    while not started.wait(0.2):
        assert peer.is_alive(), "the worker process ended before it began the step"
    return peer, finish


def test_a_step_that_a_marin_process_builds_is_waited_for_and_served(
    local_step: MarinStep, calls: Calls
) -> None:
    peer, finish = start_peer(build_with_marin, local_step)

    def wait(seconds: float) -> None:
        finish.set()
        time.sleep(0.02)

    outcome = StepCache().begin(local_step, wait=wait)
    assert finish.is_set()
    assert isinstance(outcome, Hit)
    assert outcome.record is not None
    assert outcome.record.result == {"built_by": "marin"}
    peer.join(PATIENCE_S)
    assert peer.exitcode == 0
    assert calls.take() == []
    assert not is_locked(local_step.output_path)


def test_a_step_that_a_process_of_ours_builds_is_waited_for_by_marin_and_served(
    local_step: MarinStep, calls: Calls, on_marins_wait: Callable[..., list[float]]
) -> None:
    peer, finish = start_peer(build_with_ours, local_step)

    def act() -> None:
        finish.set()
        peer.join(PATIENCE_S)

    waits = on_marins_wait(act)
    run_step(local_step)
    assert waits == [5]
    assert peer.exitcode == 0
    record = marin_read_record(local_step.output_path)
    assert record is not None
    assert record.result == {"built_by": "ours"}
    assert calls.take() == []
    assert not is_locked(local_step.output_path)


def test_a_killed_marin_process_is_waited_for_while_its_lease_lives_and_then_taken_over(
    local_step: MarinStep, calls: Calls
) -> None:
    peer, _ = start_peer(build_with_marin, local_step)
    peer.kill()
    peer.join(PATIENCE_S)
    assert is_locked(local_step.output_path)
    with pytest.raises(AssertionError, match="waited"):
        begin(local_step)
    # A new look: to the old one, a lease that changes is a lease that is renewed.
    age_lock(local_step.output_path)
    results = StepRunner().run([local_step])  # a Dagster run
    assert results[local_step].path == local_step.output_path
    assert calls.take() == ["train"]
    assert marin_status(local_step.output_path) == "SUCCESS"
    assert not is_locked(local_step.output_path)


@pytest.mark.parametrize("target", [build_with_ours, run_in_dagster])
def test_a_killed_process_of_ours_is_waited_for_while_its_lease_lives_and_then_taken_over(
    target: Callable[..., None],
    local_step: MarinStep,
    calls: Calls,
    on_marins_wait: Callable[..., list[float]],
) -> None:
    peer, _ = start_peer(target, local_step)
    peer.kill()
    peer.join(PATIENCE_S)
    assert is_locked(local_step.output_path)

    def act() -> None:
        if len(waits) == 3:
            age_lock(local_step.output_path)

    waits = on_marins_wait(act)
    run_step(local_step)
    assert waits == [5, 5, 5]
    assert calls.take() == ["train"]
    assert read_record(OutputDir.at(local_step.output_path)) is not None
    assert not is_locked(local_step.output_path)


def test_the_lock_lies_where_marin_looks_for_it(step: MarinStep) -> None:
    assert StatusFile(step.output_path, "reader")._lock_path == lock_url(step.output_path)
