"""The cache sensor and what others leave in a store: clocks that are off, text that is none."""

import json
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import fsspec
import pytest
from dagster._core.definitions.data_version import StaleStatus
from fsspec.implementations.local import LocalFileSystem

from helpers.runs import Recorder, metadata_of, run_job
from helpers.sensor_ticks import Watch, build_outside
from marin_dagster import OUT, apply, build_definitions


class SkewedFileSystem(LocalFileSystem):
    """The local disk, with a clock of its own."""

    protocol = "skewed"
    ahead = timedelta()

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(path).removeprefix("skewed://")

    def modified(self, path: str) -> datetime:
        moment: datetime = super().modified(path)
        return moment + self.ahead


@pytest.mark.parametrize("hours", [1, -1])
def test_a_dev_build_is_known_whatever_the_clock_of_the_store_says(
    instance: dg.DagsterInstance, store: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    fsspec.register_implementation("skewed", SkewedFileSystem, clobber=True)
    monkeypatch.setenv("MARIN_PREFIX", f"skewed://{store}")
    monkeypatch.setattr(SkewedFileSystem, "ahead", timedelta(hours=hours))
    raw = apply("raw", lambda out: None, version="dev", out=OUT)
    end = apply("end", lambda raw, out: None, version="dev", raw=raw, out=OUT)
    watch = Watch(instance, [end])

    for _ in range(2):
        run_job(watch.definitions, instance)
        assert watch.tick() == {}
        assert watch.stale("end") == StaleStatus.FRESH

    build_outside(raw)
    assert watch.reported() == {"raw": "hit"}
    assert watch.tick() == {}


@pytest.mark.parametrize("found_by", ["sensor", "run"])
def test_text_that_is_no_utf8_is_replaced_before_it_reaches_the_webserver(
    recorder: Recorder, instance: dg.DagsterInstance, found_by: str
) -> None:
    step = recorder.step("raw", result={"rows": 1})
    build_outside(step)
    file = Path(step.output_path, ".artifact.json")
    record = json.loads(file.read_text())
    record["provenance"] |= {"built_by": "\ud800x", "base_commit": "\udfff"}
    record["result"] = {"rows\ud800": 2, "kept": 3}
    file.write_text(json.dumps(record))

    if found_by == "sensor":
        Watch(instance, [step]).tick()
    else:
        run_job(build_definitions([step]), instance)

    event = instance.get_latest_materialization_event(dg.AssetKey("raw"))
    assert event is not None
    assert event.asset_materialization is not None
    metadata = metadata_of(event.asset_materialization)
    json.dumps(metadata, ensure_ascii=False, default=str).encode()
    assert metadata["marin/built_by"] == "?x"
    assert metadata["kept"] == 3


def test_a_recorded_fingerprint_that_is_no_utf8_does_not_stop_the_sensor(
    instance: dg.DagsterInstance,
) -> None:
    raw = apply("raw", lambda out: None, version="2026.07.01", out=OUT)
    build_outside(raw)
    file = Path(raw.path(), ".artifact.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fingerprint": "\ud800x"}))
    watch = Watch(instance, [raw])

    (made,) = watch.tick().values()

    assert (made.tags or {})["dagster/data_version"] == "?x"
    assert watch.tick() == {}


def test_an_owner_whose_name_is_no_utf8_is_told(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw")
    folder = Path(step.output_path)
    folder.mkdir(parents=True)
    folder.joinpath(".executor_status").write_text("RUNNING")
    lease = {"worker_id": "\ud800x", "timestamp": time.time()}
    folder.joinpath(".executor_status.lock").write_text(json.dumps(lease))
    watch = Watch(instance, [step])

    (event,) = watch.tick().values()

    assert metadata_of(event)["marin/owner"] == "?x"
    assert watch.tick() == {}
