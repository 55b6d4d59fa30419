"""The lock file on local disk, in a bucket, and on a store without conditional writes."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from helpers.cache import LOCK, lease
from marin_dagster.cache import LeaseTiming, OutputDir
from marin_dagster.cache.lease import LeaseWatch, LocalLock, Lock, SettledLock
from marin_dagster.cache.locks import lock_for
from marin_dagster.cache.object_lock import ObjectLock
from marin_dagster.errors import LeaseLostError, StoreError

TIMING = LeaseTiming(settle_s=0.0)


KINDS = {"local": LocalLock, "s3": ObjectLock, "memory": SettledLock}


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.server), "memory"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutputDir]:
    if kind == "local":
        yield OutputDir.at(str(tmp_path / "output"))
    elif kind == "s3":
        yield OutputDir.at(f"{request.getfixturevalue('s3_prefix')}/output")
    else:
        yield OutputDir.at(f"memory://{tmp_path}/output")
        fsspec.filesystem("memory").store.clear()


@pytest.fixture
def lock(folder: OutputDir) -> Lock:
    folder.make()
    return lock_for(folder, TIMING)


def take(lock: Lock, worker_id: str) -> bool:
    return lock.acquire(worker_id, LeaseWatch(TIMING))


def test_the_lock_fits_the_store(kind: str, folder: OutputDir) -> None:
    assert type(lock_for(folder, TIMING)) is KINDS[kind]


def test_a_free_lock_is_won_in_a_folder_that_does_not_exist_yet(folder: OutputDir) -> None:
    lock = lock_for(folder, TIMING)
    assert lock.read() is None
    before = time.time()
    assert take(lock, "me")
    fields = json.loads(folder.read(LOCK) or b"")
    assert fields.keys() == {"worker_id", "timestamp"}
    assert fields["worker_id"] == "me"
    assert before <= fields["timestamp"] <= time.time()


def test_a_live_lock_is_not_won_and_not_touched(lock: Lock, folder: OutputDir) -> None:
    take(lock, "me")
    content = folder.read(LOCK)
    assert not take(lock, "you")
    assert folder.read(LOCK) == content


@pytest.mark.parametrize("content", [lease(age_s=91), "", " \n"], ids=["stale", "empty", "blank"])
def test_a_stale_or_empty_lock_is_won_at_once(content: str, lock: Lock, folder: OutputDir) -> None:
    folder.write(LOCK, content.encode())
    assert take(lock, "me")
    assert (found := lock.read()) is not None
    assert found.worker_id == "me"


def test_a_long_foreign_lock_file_is_replaced_whole(lock: Lock, folder: OutputDir) -> None:
    folder.write(LOCK, (lease(age_s=91) + " " * 3_000).encode())
    assert take(lock, "me")
    assert json.loads(folder.read(LOCK) or b"")["worker_id"] == "me"
    assert len(folder.read(LOCK) or b"") < 200


def test_a_renewal_moves_the_timestamp_only(lock: Lock, folder: OutputDir) -> None:
    folder.write(LOCK, lease("me", age_s=50).encode())
    lock.refresh("me")
    assert (found := lock.read()) is not None
    assert found.worker_id == "me"
    assert time.time() - found.timestamp < 49


def test_a_released_lock_is_gone(lock: Lock, folder: OutputDir) -> None:
    take(lock, "me")
    lock.release("me")
    assert folder.read(LOCK) is None
    assert take(lock, "you")


def test_a_foreign_lock_is_not_released(lock: Lock, folder: OutputDir) -> None:
    content = lease("foreign").encode()
    folder.write(LOCK, content)
    lock.release("me")
    assert folder.read(LOCK) == content


def test_releasing_a_lock_that_is_gone_is_no_error(lock: Lock, folder: OutputDir) -> None:
    lock.release("me")
    assert folder.read(LOCK) is None


def test_a_foreign_lock_cannot_be_renewed(lock: Lock, folder: OutputDir) -> None:
    content = lease("foreign", age_s=500).encode()
    folder.write(LOCK, content)
    with pytest.raises(LeaseLostError, match="foreign"):
        lock.refresh("me")
    assert folder.read(LOCK) == content


def test_a_lock_that_is_gone_cannot_be_renewed(lock: Lock, folder: OutputDir) -> None:
    with pytest.raises(LeaseLostError, match="gone"):
        lock.refresh("me")
    assert folder.read(LOCK) is None


@pytest.mark.parametrize("renewed", [False, True])
@pytest.mark.parametrize("now", [None, lease("foreign")], ids=["gone", "foreign"])
def test_a_lease_that_was_lost_since_its_last_renewal_cannot_be_renewed(
    now: str | None, renewed: bool, lock: Lock, folder: OutputDir
) -> None:
    assert take(lock, "me")
    if renewed:
        lock.refresh("me")
    if now is None:
        folder.delete(LOCK)
    else:
        folder.write(LOCK, now.encode())
    for _ in range(2):
        with pytest.raises(LeaseLostError, match="gone" if now is None else "foreign"):
            lock.refresh("me")
    lock.release("me")
    assert folder.read(LOCK) == (None if now is None else now.encode())


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_lock_that_is_unreadable_cannot_be_renewed(
    content: bytes, lock: Lock, folder: OutputDir
) -> None:
    folder.write(LOCK, content)
    with pytest.raises(LeaseLostError):
        lock.refresh("me")
    assert folder.read(LOCK) == content


@pytest.mark.server
@pytest.mark.parametrize("kind", ["s3"], indirect=True)
def test_a_put_that_arrived_though_its_answer_was_lost_counts(
    lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = ObjectLock._put

    def refused_at_the_second_try(self: ObjectLock, *arguments: Any) -> bool:
        put(self, *arguments)
        return put(self, *arguments)

    monkeypatch.setattr(ObjectLock, "_put", refused_at_the_second_try)
    assert take(lock, "me")
    lock.refresh("me")
    assert not take(lock, "you")
    lock.release("me")
    assert lock.read() is None


def vanish_once(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Remove the file once, just before this process would lock the file it has opened."""
    real: Callable[..., Any] = fcntl.flock
    left = [path]

    def flock(file: Any, operation: int) -> Any:
        if left and operation & ~fcntl.LOCK_NB in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            os.unlink(left.pop())
        return real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.fixture
def local(tmp_path: Path) -> LocalLock:
    return LocalLock(OutputDir.at(str(tmp_path)))


def test_a_local_lock_that_vanishes_between_opening_and_locking_is_won_anew(
    local: LocalLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(local.path).write_text(lease("foreign"))
    vanish_once(monkeypatch, local.path)
    assert take(local, "me")
    assert json.loads(Path(local.path).read_text())["worker_id"] == "me"


def test_a_local_lock_that_vanishes_is_not_renewed_in_the_removed_file(
    local: LocalLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(local, "me")
    vanish_once(monkeypatch, local.path)
    with pytest.raises(LeaseLostError):
        local.refresh("me")
    assert not Path(local.path).exists()


def test_a_local_lock_that_vanishes_while_it_is_released_or_read_is_no_error(
    local: LocalLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(local, "me")
    vanish_once(monkeypatch, local.path)
    local.release("me")
    assert local.read() is None


def test_a_lock_that_cannot_be_read_or_taken_is_a_store_error(local: LocalLock) -> None:
    os.mkdir(local.path)
    with pytest.raises(StoreError, match=LOCK):
        local.read()
    with pytest.raises(StoreError, match=LOCK):
        take(local, "me")
    with pytest.raises(StoreError, match=LOCK):
        local.refresh("me")


def test_a_folder_that_vanishes_while_its_lock_is_taken_is_a_store_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "makedirs", lambda *arguments, **options: None)
    with pytest.raises(StoreError, match=LOCK):
        take(LocalLock(OutputDir.at(str(tmp_path / "gone"))), "me")


def test_the_last_of_two_writers_within_the_settle_time_wins(tmp_path: Path) -> None:
    class Overwritten(SettledLock):
        def _write(self, worker_id: str) -> None:
            super()._write(worker_id)
            super()._write("you")

    folder = OutputDir.at(f"memory://{tmp_path}/output")
    assert not take(Overwritten(folder, TIMING), "me")
    assert take(SettledLock(folder, TIMING), "you") is False
    assert json.loads(folder.read(LOCK) or b"")["worker_id"] == "you"
