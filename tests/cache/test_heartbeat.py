"""The one thread that renews every lease of the process, and what it does when a lease is lost."""

import logging
import threading
from pathlib import Path

import pytest

from helpers.cache import LOCK, STATUS, begin, build, get, lease, make, put
from helpers.processes import GUARD_S, wait_until
from marin_dagster.cache import LeaseTiming, OutputDir, StepCache
from marin_dagster.cache.heartbeat import HeldLease, keeper
from marin_dagster.cache.lease import Lease, LeaseWatch, LocalLock
from marin_dagster.errors import LeaseLostError, StoreTimeoutError
from marin_dagster.steps import StepSpec

FAST = LeaseTiming(refresh_s=0.01, stale_s=3_600)


def keeper_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "marin-lease-keeper"]


def levels_logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The levels of what this package logged; other libraries' threads may log, too."""
    ours = [record for record in caplog.records if record.name.startswith("marin_dagster")]
    return [record.levelname for record in ours]


def timestamp(step: StepSpec) -> float:
    # Under flock, as every reader does: in between, the file may hold the end of a longer one.
    found = LocalLock(OutputDir.at(step.output_path)).read()
    assert found
    return found.timestamp


def wait_for_renewals(step: StepSpec, count: int) -> None:
    for _ in range(count):
        seen = timestamp(step)
        wait_until(lambda seen=seen: timestamp(step) != seen, "a renewal")


class FakeLock:
    """A lock whose renewals go wrong as planned."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.renewals = 0

    def read(self) -> Lease | None:
        return None

    def acquire(self, worker_id: str, watch: LeaseWatch) -> bool:
        return True

    def refresh(self, worker_id: str) -> None:
        self.renewals += 1
        if self.errors:
            raise self.errors.pop(0)

    def release(self, worker_id: str) -> None:
        pass


def hold(lock: FakeLock) -> HeldLease:
    held = HeldLease(lock, "me", FAST)
    keeper.hold(held)
    return held


@pytest.mark.slow
def test_one_thread_renews_50_leases_and_ends_with_the_last() -> None:
    steps = [make(f"s{index}") for index in range(50)]
    cache = StepCache(FAST)
    attempts = [begin(step, cache) for step in steps]
    [thread] = keeper_threads()
    assert thread.daemon
    for step in steps:
        wait_for_renewals(step, 2)
    for attempt in attempts[:25]:
        attempt.commit()
    assert keeper_threads() == [thread]
    for attempt in attempts[25:]:
        attempt.fail()
    thread.join(GUARD_S)
    assert not keeper_threads()
    assert all(get(step, LOCK) is None for step in steps)


def test_a_new_thread_starts_for_the_next_lease() -> None:
    for _ in range(3):
        attempt = begin(make("again"), StepCache(FAST), force=True)
        [thread] = keeper_threads()
        wait_for_renewals(make("again"), 1)
        attempt.commit()
        thread.join(GUARD_S)
        assert not keeper_threads()


def test_a_heartbeat_every_10_ms_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    step = make("step")
    with caplog.at_level(logging.INFO, "marin_dagster"):
        attempt = begin(step, StepCache(FAST))
        wait_for_renewals(step, 20)
        attempt.commit()
    assert get(step, STATUS) == "SUCCESS"
    assert get(step, LOCK) is None
    assert not levels_logged(caplog)


def test_very_short_attempts_with_a_furious_heartbeat_end_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = StepCache(LeaseTiming(refresh_s=0.0, stale_s=3_600))
    for index in range(30):
        step = build(make(f"s{index}"), cache=cache)
        assert get(step, STATUS) == "SUCCESS"
        assert get(step, LOCK) is None
    assert not levels_logged(caplog)


def test_a_renewal_that_comes_just_after_the_release_is_no_lost_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = LocalLock(OutputDir.at(str(tmp_path)))
    lock.acquire("me", LeaseWatch(FAST))
    held = HeldLease(lock, "me", FAST)
    held.release()
    # The keeper had chosen this lease before it was released, and only now gets to it.
    held.renew(0.0)
    assert held.lost is None
    assert not levels_logged(caplog)
    assert not Path(lock.path).exists()


def test_a_renewal_that_the_store_refuses_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    lock = FakeLock(OSError("the network is down"), RuntimeError("still down"))
    held = hold(lock)
    wait_until(lambda: lock.renewals >= 5, "renewals after the store refused two")
    held.check()
    held.release()
    assert held.lost is None
    assert levels_logged(caplog) == ["WARNING", "WARNING"]
    assert "the network is down" in caplog.text


def test_a_lost_lease_is_said_once_and_renewed_no_more(caplog: pytest.LogCaptureFixture) -> None:
    lost, live = FakeLock(LeaseLostError("taken by somebody")), FakeLock()
    held = [hold(lost), hold(live)]
    wait_until(lambda: lost.renewals == 1 and live.renewals >= 10, "renewals of the live lease")
    with pytest.raises(LeaseLostError, match="taken by somebody"):
        held[0].check()
    held[1].check()
    for each in held:
        each.release()
    assert lost.renewals == 1
    assert levels_logged(caplog) == ["ERROR"]


def test_a_lease_that_the_heartbeat_saw_lost_stays_lost_though_the_lock_is_free_again() -> None:
    step = make("step")
    attempt = begin(step, StepCache(FAST))
    [thread] = keeper_threads()
    put(step, LOCK, lease("foreign-1"))
    wait_until(lambda: attempt._lease.lost, "the heartbeat to see the foreign lock")
    # The content this worker once wrote comes back, as from a backup: still not to be trusted.
    put(step, LOCK, lease(attempt._lease.worker_id))
    with pytest.raises(LeaseLostError, match="foreign-1"):
        attempt.commit()
    assert get(step, STATUS) == "RUNNING"
    thread.join(GUARD_S)


def test_each_renewal_moves_the_timestamp_forward() -> None:
    step = make("step")
    attempt = begin(step, StepCache(FAST))
    stamps = [timestamp(step)]
    for _ in range(5):
        wait_for_renewals(step, 1)
        stamps.append(timestamp(step))
    attempt.commit()
    assert stamps == sorted(stamps)


class HangingLock(FakeLock):
    """A lock whose renewals hang until the test lets them go on."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__(*errors)
        self.hangs = threading.Event()
        self.go_on = threading.Event()

    def refresh(self, worker_id: str) -> None:
        self.hangs.set()
        assert self.go_on.wait(GUARD_S)
        super().refresh(worker_id)


def test_a_renewal_that_hangs_holds_up_no_other_lease() -> None:
    hanging, live = HangingLock(), FakeLock()
    held = [hold(hanging), hold(live)]
    assert hanging.hangs.wait(GUARD_S)
    seen = live.renewals
    wait_until(lambda: live.renewals >= seen + 5, "renewals of the other lease")
    # One at a time for each lease, however long it takes.
    assert hanging.renewals == 0
    assert len([t for t in threading.enumerate() if t.name == "marin-lease-renewal"]) <= 2
    hanging.go_on.set()
    wait_until(lambda: hanging.renewals >= 3, "renewals after the one that hung")
    for each in held:
        each.release()
    wait_until(lambda: not keeper_threads(), "the end of the keeper's thread")


def test_a_lease_that_is_left_while_its_renewal_hangs_is_renewed_no_more() -> None:
    lock = HangingLock()
    held = hold(lock)
    [thread] = keeper_threads()
    assert lock.hangs.wait(GUARD_S)
    held.drop()
    thread.join(GUARD_S)
    assert not keeper_threads()
    lock.go_on.set()
    wait_until(lambda: lock.renewals == 1, "the end of the renewal that hung")
    held.renew(0.0)
    assert lock.renewals == 1


def test_a_check_takes_the_answer_of_the_renewal_that_it_waited_for_when_that_got_none() -> None:
    lock = HangingLock(StoreTimeoutError("no answer"))
    held = hold(lock)
    assert lock.hangs.wait(GUARD_S)
    mutex, waits = held._mutex, threading.Event()

    class Announced:
        def __enter__(self) -> None:
            waits.set()
            mutex.acquire()

        def __exit__(self, *error: object) -> None:
            mutex.release()

    held._mutex = Announced()  # type: ignore[assignment]
    errors: list[Exception] = []

    def check() -> None:
        try:
            held.check()
        except StoreTimeoutError as error:
            errors.append(error)

    checking = threading.Thread(target=check)
    checking.start()
    assert waits.wait(GUARD_S)
    held.drop()
    lock.go_on.set()
    checking.join(GUARD_S)
    assert [str(error) for error in errors] == ["no answer"]
    assert lock.renewals == 1
    # A check that comes later asks the store itself.
    held.check()
    assert lock.renewals == 2


def test_leases_are_renewed_where_no_more_threads_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = FakeLock()
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "marin-lease-renewal":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    held = hold(lock)
    wait_until(lambda: lock.renewals >= 3, "renewals in the keeper's own thread")
    held.release()


def test_an_attempt_that_cannot_be_renewed_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == "marin-lease-keeper":
            raise RuntimeError("can't start new thread")
        start(self)

    step = make("step")
    # That of an earlier lease may be about to end.
    wait_until(lambda: keeper._thread is None, "the end of the keeper")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            begin(step)
    assert get(step, LOCK) is None
    assert not keeper._held
    begin(step).commit()
