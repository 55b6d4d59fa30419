"""The whole life of an output on every kind of store, and what others write is seen at once."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from helpers.cache import INFO, LOCK, RECORD, STATUS, begin, lease, nothing, python
from marin_dagster.cache import CacheState, Hit, LeaseTiming, OutputDir, StepCache
from marin_dagster.errors import LeaseLostError, StoreError
from marin_dagster.steps import StepSpec


@pytest.fixture(params=["local", "file", "memory", pytest.param("s3", marks=pytest.mark.server)])
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store of each kind."""
    match request.param:
        case "local":
            yield str(tmp_path / "store")
        case "file":
            yield f"file://{tmp_path}/store"
        case "memory":
            yield f"memory://{tmp_path.name}/store"
            MemoryFileSystem.store.clear()
            MemoryFileSystem.pseudo_dirs[:] = [""]
        case _:
            yield request.getfixturevalue("s3_prefix")


def make(prefix: str, name: str = "step", *deps: StepSpec, **fields: Any) -> StepSpec:
    return StepSpec(name, output_path_prefix=prefix, deps=deps, fn=nothing, **fields)


def files(step: StepSpec) -> dict[str, bytes]:
    """The files of an output, by a reader of its own."""
    folder = OutputDir.at(step.output_path)
    folder.fs.invalidate_cache()
    root = folder.path.rstrip("/") + "/"
    return {path.removeprefix(root): folder.fs.cat_file(path) for path in folder.fs.find(root)}


def test_an_output_is_built_and_served(prefix: str) -> None:
    cache = StepCache(LeaseTiming(settle_s=0.0))
    raw = make(prefix, "raw")
    step = make(prefix, "a/b", raw, hash_attrs={"é": 1})
    assert cache.look_up(step).state is CacheState.MISS
    begin(raw, cache).commit()

    attempt = begin(step, cache)
    assert cache.look_up(step).state is CacheState.RUNNING
    found = files(step)
    assert found.keys() == {STATUS, LOCK, INFO}
    assert json.loads(found[LOCK]).keys() == {"worker_id", "timestamp"}
    attempt.result = {"n": 1}
    attempt.commit()

    found = files(step)
    assert found.keys() == {STATUS, INFO, RECORD}
    assert found[STATUS] == b"SUCCESS"
    assert cache.look_up(step).state is CacheState.HIT
    hit = cache.begin(step)
    assert isinstance(hit, Hit)
    assert hit.record
    assert hit.record.result == {"n": 1}
    assert hit.record.dep_paths == [raw.output_path]


def test_a_failed_output_is_built_again(prefix: str) -> None:
    cache = StepCache(LeaseTiming(settle_s=0.0))
    step = make(prefix)
    begin(step, cache).fail()
    assert files(step).keys() == {STATUS, INFO}
    assert cache.look_up(step).state is CacheState.FAILED
    begin(step, cache).commit()
    assert cache.look_up(step).state is CacheState.HIT


def test_a_lost_lease_leaves_the_new_owners_files(prefix: str) -> None:
    step = make(prefix)
    attempt = begin(step, StepCache(LeaseTiming(settle_s=0.0)))
    folder = OutputDir.at(step.output_path)
    folder.write(LOCK, lease("foreign-1").encode())
    before = files(step)
    with pytest.raises(LeaseLostError, match="foreign-1"):
        attempt.commit()
    assert files(step) == before


def test_the_lease_is_renewed_while_the_step_runs(prefix: str) -> None:
    step = make(prefix)
    attempt = begin(step, StepCache(LeaseTiming(refresh_s=0.01, stale_s=3_600, settle_s=0.0)))
    for _ in range(3):
        seen = files(step)[LOCK]
        while files(step)[LOCK] in (seen, b""):
            pass
    attempt.commit()
    assert files(step).keys() == {STATUS, INFO, RECORD}


def test_an_output_is_listed_without_the_caches_own_files(prefix: str) -> None:
    step = make(prefix)
    attempt = begin(step, StepCache(LeaseTiming(settle_s=0.0)))
    folder = attempt.folder
    assert folder.files() == {}
    folder.write("data.txt", b"12345")
    folder.fs.makedirs(f"{folder.path}/inner", exist_ok=True)
    folder.write("inner/more.bin", b"123")
    assert folder.files() == {"data.txt": 5, "inner/more.bin": 3}
    attempt.commit()
    assert folder.files() == {"data.txt": 5, "inner/more.bin": 3}


def test_what_another_process_adds_to_an_output_is_listed_and_measured(s3_prefix: str) -> None:
    folder = OutputDir.at(make(s3_prefix).output_path)
    folder.write("data.txt", b"12345")
    assert folder.files() == {"data.txt": 5}
    assert len(folder.fs.ls(folder.path)) == 1
    python(WRITE_ELSEWHERE, f"{folder.url}/more.txt", "123")
    assert folder.files() == {"data.txt": 5, "more.txt": 3}
    assert len(folder.fs.ls(folder.path)) == 2


WRITE_ELSEWHERE = """
import sys
import s3fs
s3fs.S3FileSystem().pipe_file(sys.argv[1], sys.argv[2].encode())
"""

BUILD_ELSEWHERE = """
import sys
from marin_dagster.cache import StepCache
from marin_dagster.steps import StepSpec
attempt = StepCache().begin(StepSpec("step", output_path_prefix=sys.argv[1], fn=print))
attempt.result = {"by": "another process"}
attempt.commit()
"""


def test_another_processs_success_in_a_bucket_is_seen_at_once(s3_prefix: str) -> None:
    step = make(s3_prefix)
    # Whatever caches listings by default has one of this folder, from before the write.
    default = fsspec.filesystem("s3")
    assert not default.exists(f"{step.output_path}/{STATUS}")
    assert StepCache().look_up(step).state is CacheState.MISS
    python(WRITE_ELSEWHERE, f"{step.output_path}/{STATUS}", "SUCCESS")
    assert StepCache().look_up(step).state is CacheState.HIT
    assert isinstance(StepCache().begin(step), Hit)
    python(WRITE_ELSEWHERE, f"{step.output_path}/{STATUS}", "FAILED")
    assert StepCache().look_up(step).state is CacheState.FAILED


def test_what_another_process_built_in_a_bucket_is_served_with_its_record(s3_prefix: str) -> None:
    step = make(s3_prefix)
    assert StepCache().look_up(step).state is CacheState.MISS
    assert files(step) == {}
    python(BUILD_ELSEWHERE, s3_prefix)
    hit = StepCache().begin(step)
    assert isinstance(hit, Hit)
    assert hit.record
    assert hit.record.result == {"by": "another process"}


def test_a_missing_bucket_is_a_miss_and_cannot_be_built_in(s3_prefix: str) -> None:
    step = make("s3://no-such-bucket-anywhere/store")
    assert StepCache().look_up(step).state is CacheState.MISS
    with pytest.raises(StoreError, match="no-such-bucket-anywhere"):
        StepCache().begin(step)


def test_a_bucket_that_cannot_be_asked_is_a_store_error(
    s3_prefix: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    step = make(s3_prefix)
    with pytest.raises(StoreError, match="credentials"):
        StepCache().look_up(step)
    with pytest.raises(StoreError, match="credentials"):
        StepCache().begin(step)


@pytest.mark.parametrize("url", ["nosuchscheme://x/y", "hdfs://x/y"])
def test_a_store_that_nothing_serves_is_a_store_error(url: str) -> None:
    step = StepSpec("step", override_output_path=url, fn=nothing)
    with pytest.raises(StoreError, match=url):
        StepCache().look_up(step)


class VanishingLock(MemoryFileSystem):
    """Lists a lock that is gone by the time it is read."""

    protocol = "vanishing"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def exists(self, path: str, **options: Any) -> bool:
        return str(path).endswith(LOCK) or super().exists(path, **options)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        content: bytes = super().cat_file(path, start, end, **options)
        if path.endswith(LOCK) and b"foreign" in content:
            self.rm_file(path)
            raise FileNotFoundError(path)
        return content


def test_a_lock_that_vanishes_between_listing_and_reading_is_no_lock() -> None:
    fsspec.register_implementation("vanishing", VanishingLock, clobber=True)
    step = make("vanishing://store")
    folder = OutputDir.at(step.output_path)
    folder.make()
    folder.write(STATUS, b"RUNNING")
    folder.write(LOCK, lease("foreign-1").encode())
    begin(step, StepCache(LeaseTiming(settle_s=0.0)), wait=None).commit()
    assert StepCache().look_up(step).state is CacheState.HIT
    assert os.path.basename(folder.path) == step.name_with_hash
