"""Telling a live holder from a dead one by what a reader sees, with clocks that disagree."""

import itertools
import json
import math
from types import SimpleNamespace

import pytest

from marin_dagster.cache import LeaseTiming
from marin_dagster.cache import lease as lease_module
from marin_dagster.cache.lease import (
    Lease,
    LeaseWatch,
    format_lease,
    parse_lease,
)
from marin_dagster.cache.worker_ids import new_worker_id

STALE_S = 90.0
EPOCH = 1_800_000_000.0


class Clock:
    """This host's clock, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return EPOCH + self.now

    def monotonic(self) -> float:
        return 5_000.0 + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(
        lease_module, "time", SimpleNamespace(time=clock.time, monotonic=clock.monotonic)
    )
    return clock


@pytest.fixture
def watch() -> LeaseWatch:
    return LeaseWatch(LeaseTiming(stale_s=STALE_S))


def renewed(age_s: float, worker_id: str = "holder") -> Lease:
    return Lease(worker_id, EPOCH - age_s)


def test_no_lease_is_not_live(clock: Clock, watch: LeaseWatch) -> None:
    assert not watch.is_live(None)


@pytest.mark.parametrize(("age_s", "live"), [(0, True), (89, True), (90, True), (91, False)])
def test_a_lease_is_live_for_90_seconds(
    age_s: float, live: bool, clock: Clock, watch: LeaseWatch
) -> None:
    assert watch.is_live(renewed(age_s)) is live


def test_a_live_lease_becomes_stale_when_it_is_not_renewed(clock: Clock, watch: LeaseWatch) -> None:
    assert watch.is_live(renewed(0))
    clock.now = 90
    assert watch.is_live(renewed(0))
    clock.now = 91
    assert not watch.is_live(renewed(0))


def test_a_renewed_lease_stays_live(clock: Clock, watch: LeaseWatch) -> None:
    for clock.now in range(0, 600, 30):
        assert watch.is_live(Lease("holder", clock.time()))


@pytest.mark.parametrize("ahead_s", [120, 1e6, math.inf])
def test_an_unchanged_timestamp_from_the_future_becomes_stale_by_observation(
    ahead_s: float, clock: Clock, watch: LeaseWatch
) -> None:
    future = renewed(-ahead_s)
    assert watch.is_live(future)
    clock.now = 90
    assert watch.is_live(future)
    clock.now = 91
    assert not watch.is_live(future)


def test_a_holder_whose_clock_is_ahead_and_renews_stays_live(
    clock: Clock, watch: LeaseWatch
) -> None:
    for clock.now in range(0, 600, 30):
        assert watch.is_live(Lease("holder", clock.time() + 10_000))


def test_a_holder_whose_clock_is_behind_is_respected_once_it_was_seen_to_renew(
    clock: Clock, watch: LeaseWatch
) -> None:
    def behind() -> Lease:
        return Lease("holder", clock.time() - 10_000)

    first = behind()
    assert not watch.is_live(first)
    clock.now = 30
    renewal = behind()
    assert watch.is_live(renewal)
    clock.now = 120
    assert watch.is_live(renewal)
    clock.now = 121
    assert not watch.is_live(renewal)


def test_another_holder_with_an_old_timestamp_is_no_renewal(
    clock: Clock, watch: LeaseWatch
) -> None:
    assert not watch.is_live(renewed(200, "one"))
    assert not watch.is_live(renewed(150, "two"))


def test_what_was_seen_of_one_holder_does_not_count_for_the_next(
    clock: Clock, watch: LeaseWatch
) -> None:
    watch.is_live(renewed(200, "one"))
    assert watch.is_live(renewed(150, "one"))
    assert not watch.is_live(renewed(140, "two"))
    assert not watch.is_live(None)


def test_an_unreadable_lock_is_live_until_it_has_stood_for_90_seconds(
    clock: Clock, watch: LeaseWatch
) -> None:
    unreadable = parse_lease(b"<html>503</html>")
    assert watch.is_live(unreadable)
    clock.now = 90
    assert watch.is_live(unreadable)
    clock.now = 91
    assert not watch.is_live(unreadable)


UNREADABLE = [
    b"garbage",
    b"\xff\xfe\x00",
    b"{",
    b"[]",
    b"null",
    b"7",
    b"{}",
    b'{"worker_id": "a"}',
    b'{"timestamp": 1}',
    b'{"worker_id": "a", "timestamp": "yesterday"}',
    b'{"worker_id": "a", "timestamp": null}',
    b'{"worker_id": "a", "timestamp": NaN}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("content", UNREADABLE, ids=lambda content: repr(content[:40]))
def test_an_unreadable_lock_file_is_held_by_someone_unknown(
    content: bytes, clock: Clock, watch: LeaseWatch
) -> None:
    assert watch.is_live(parse_lease(content))


@pytest.mark.parametrize("content", [None, b"", b" \n"])
def test_an_empty_lock_file_is_no_lock(content: bytes | None) -> None:
    assert parse_lease(content) is None


def test_the_lock_file_holds_exactly_the_keys_that_marins_reader_accepts() -> None:
    fields = json.loads(format_lease(Lease("worker", 12.5)))
    assert fields == {"worker_id": "worker", "timestamp": 12.5}
    assert parse_lease(format_lease(Lease("worker", 12.5))) == Lease("worker", 12.5)


def test_marins_own_lock_file_is_read() -> None:
    content = b'{"worker_id": "host-a-123", "timestamp": 1795970028.178626}'
    assert parse_lease(content) == Lease("host-a-123", 1795970028.178626)


def test_every_attempt_has_a_worker_id_of_its_own() -> None:
    ids = [new_worker_id() for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert all(one != other for one, other in itertools.pairwise(ids))


def test_the_defaults_are_marins() -> None:
    assert (LeaseTiming().refresh_s, LeaseTiming().stale_s) == (30, 90)
