"""Metadata of materializations: what was built or served, how large it is, and its numbers."""

import dataclasses
import getpass
import json
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import BaseModel

from helpers.runs import Recorder, memory_instance, metadata_of, run_job, status_of
from marin_dagster import StepSpec, build_definitions


def _metadata(step: StepSpec, instance: dg.DagsterInstance) -> dict[str, Any]:
    run = run_job(build_definitions([step]), instance, select=[step.name])
    assert run.success
    return metadata_of(run.materialized()[step.name])


def test_a_build_states_path_cache_duration_files_and_bytes(instance: dg.DagsterInstance) -> None:
    def build(output_path: str) -> None:
        folder = Path(output_path, "part", ".hidden")
        folder.mkdir(parents=True)
        Path(output_path, "data.txt").write_text("12345")
        Path(output_path, "part", "more.txt").write_text("678")
        Path(output_path, "empty").touch()

    step = StepSpec("raw", fn=build)
    before = time.monotonic()

    metadata = _metadata(step, instance)

    assert metadata["marin/output_path"] == step.output_path
    assert metadata["marin/cache"] == "built"
    assert 0 <= metadata["marin/duration_s"] <= time.monotonic() - before
    assert metadata["marin/files"] == 3
    assert metadata["marin/bytes"] == 8
    assert "marin/built_by" not in metadata


def test_the_duration_covers_the_function(instance: dg.DagsterInstance) -> None:
    spent = 0.05

    metadata = _metadata(StepSpec("raw", fn=lambda output_path: time.sleep(spent)), instance)

    assert metadata["marin/duration_s"] >= spent


def test_a_hit_states_path_size_who_built_it_when_and_the_recorded_numbers(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw", result={"tokens": 7})
    with memory_instance() as elsewhere:
        built = _metadata(step, elsewhere)

    metadata = _metadata(step, instance)

    assert recorder.calls == ["raw"]
    assert metadata["marin/cache"] == "hit"
    assert "marin/duration_s" not in metadata
    assert metadata["marin/output_path"] == step.output_path
    assert metadata["marin/built_by"] == getpass.getuser()
    assert metadata["tokens"] == 7
    for name in ("marin/files", "marin/bytes"):
        assert metadata[name] == built[name]
    record = Path(step.output_path, ".artifact.json")
    assert metadata["marin/built_at"] == pytest.approx(record.stat().st_mtime, abs=0.01)


def test_a_hit_without_a_record_says_that_nobody_knows_who_built_it(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw")
    Path(step.output_path).mkdir(parents=True)
    Path(step.output_path, ".executor_status").write_text("SUCCESS")

    metadata = _metadata(step, instance)

    assert recorder.calls == []
    assert metadata["marin/cache"] == "hit"
    assert metadata["marin/built_by"].startswith("unknown")
    assert "marin/built_at" not in metadata


def test_each_number_of_the_result_is_metadata_under_its_own_name(
    instance: dg.DagsterInstance,
) -> None:
    result = {
        "loss": 0.25,
        "steps": 0,
        "negative": -3,
        "large": 2**80,
        "eval": {"ppl": {"books": 12.5}, "count": 2},
        "not a number": float("nan"),
        "unbounded": float("-inf"),
        "converged": True,
        "name": "ngram",
        "curve": [3.0, 2.0],
        "nothing": None,
    }

    metadata = _metadata(StepSpec("train", fn=lambda output_path: result), instance)

    numbers = {key: value for key, value in metadata.items() if not key.startswith("marin/")}
    assert numbers == {
        "loss": 0.25,
        "steps": 0,
        "negative": -3,
        "large": 2**80,
        "eval.ppl.books": 12.5,
        "eval.count": 2,
        "not a number": "nan",
        "unbounded": "-inf",
    }
    assert isinstance(metadata["steps"], int)

    assert metadata["marin/result"] == {
        **result,
        "not a number": "NaN",
        "unbounded": "-Infinity",
    }


@pytest.mark.parametrize("result", [None, {}, {"loss": 0.5, "eval": {"n": 3}}])
def test_a_result_of_numbers_alone_is_not_shown_again(
    result: Any, instance: dg.DagsterInstance
) -> None:
    metadata = _metadata(StepSpec("train", fn=lambda output_path: result), instance)

    assert "marin/result" not in metadata


MUCH = {
    "long text": {"text": "x" * 501},
    "many texts": {f"text{index}": "x" * 400 for index in range(100)},
    "a long list": {"curve": list(range(100_000))},
    "lists of nothing": {"empty": [[]] * 100_000, "text": ""},
    "long keys": {f"{index}{'k' * 300}": "" for index in range(100)},
    "one long key": {"k" * 10_000: ""},
    "deep": {"deep": json.loads("[" * 100 + "]" * 100)},
}


@pytest.mark.parametrize("result", MUCH.values(), ids=MUCH)
def test_of_a_large_result_the_beginning_is_shown(
    result: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    shown = _metadata(StepSpec("train", fn=lambda output_path: result), instance)["marin/result"]

    assert shown != result
    text = json.dumps(shown, ensure_ascii=False)
    assert "…" in text
    assert len(text) < 20_000


def test_what_a_large_result_shows_is_as_it_was_returned_and_counts_the_rest(
    instance: dg.DagsterInstance,
) -> None:
    result = {"name": "x" * 600, "curve": list(range(3000)), "best": "ngram", "ok": True}

    shown = _metadata(StepSpec("train", fn=lambda output_path: result), instance)["marin/result"]

    assert shown["name"] == "x" * 500 + "…"
    *curve, more = shown["curve"]
    assert curve == list(range(len(curve)))
    assert more == f"… {3000 - len(curve)} more"
    assert shown["…"] == "2 more"


def test_each_event_but_the_materialization_is_small(instance: dg.DagsterInstance) -> None:
    step = StepSpec("train", fn=lambda output_path: {f"n{n}": n for n in range(50)})
    run = run_job(build_definitions([step]), instance)

    [handled] = run.of_type("HANDLED_OUTPUT")
    assert handled.event_specific_data.metadata == {}
    assert metadata_of(run.materialized()["train"])["n49"] == 49


def test_of_many_numbers_the_first_hundred_are_metadata_and_the_rest_is_counted(
    instance: dg.DagsterInstance,
) -> None:
    result = {"z": 1, "layers": {str(n): n for n in range(98)}, "a": {"b": 2}}

    def numbers(name: str, **more: int) -> dict[str, Any]:
        metadata = _metadata(StepSpec(name, fn=lambda output_path: result | more), instance)
        return {
            key: value
            for key, value in metadata.items()
            if not key.startswith("marin/") or key == "marin/numbers_left_out"
        }

    layers = {f"layers.{n}": n for n in range(98)}
    assert numbers("fits") == {"z": 1, **layers, "a.b": 2}
    assert numbers("over", b=3, c=4) == {"z": 1, **layers, "a.b": 2, "marin/numbers_left_out": 2}


def test_numbers_survive_the_event_log_and_can_be_plotted(instance: dg.DagsterInstance) -> None:
    step = StepSpec("train", fn=lambda output_path: {"loss": 0.25, "large": 2**80})
    _metadata(step, instance)

    event = instance.get_latest_materialization_event(dg.AssetKey("train"))

    assert event is not None
    assert event.asset_materialization is not None
    kinds = event.asset_materialization.metadata
    assert isinstance(kinds["loss"], dg.FloatMetadataValue)
    assert isinstance(kinds["large"], dg.IntMetadataValue)
    restored = dg.deserialize_value(dg.serialize_value(event.asset_materialization))
    assert restored.metadata["large"].value == 2**80


class Scores(BaseModel):
    """What a step may return."""

    loss: float
    steps: int


@dataclasses.dataclass
class Counts:
    """What another step may return."""

    loss: float
    steps: int


@pytest.mark.parametrize("result", [Scores(loss=0.5, steps=3), Counts(loss=0.5, steps=3)])
def test_numbers_of_a_model_and_of_a_dataclass_are_metadata_too(
    result: Any, instance: dg.DagsterInstance
) -> None:
    metadata = _metadata(StepSpec("train", fn=lambda output_path: result), instance)

    assert (metadata["loss"], metadata["steps"]) == (0.5, 3)


def test_numpy_numbers_are_metadata_too(instance: dg.DagsterInstance) -> None:
    numpy = pytest.importorskip("numpy")
    result = {"loss": numpy.float32(0.5), "steps": numpy.int64(3)}

    metadata = _metadata(StepSpec("train", fn=lambda output_path: result), instance)

    assert (metadata["loss"], metadata["steps"]) == (0.5, 3)


def test_a_step_that_writes_its_record_keeps_it_and_shows_its_numbers(
    instance: dg.DagsterInstance,
) -> None:
    record = json.dumps({"name": "adopted", "result": {"tokens": 11}, "source": "/data/x"})

    def build(output_path: str) -> dict[str, int]:
        Path(output_path, ".artifact.json").write_text(record)
        return {"tokens": 99}

    step = StepSpec("raw", fn=build, writes_record=True)

    metadata = _metadata(step, instance)

    assert Path(step.output_path, ".artifact.json").read_text() == record
    assert metadata["tokens"] == 11
    assert metadata["marin/cache"] == "built"


def test_a_step_that_should_write_its_record_and_does_not_fails(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw", writes_record=True)

    run = run_job(build_definitions([step]), instance)

    assert not run.success
    assert ".artifact.json" in run.error("raw")
    assert step.name_with_hash in run.error("raw")
    assert status_of(step) == "FAILED"


def test_metadata_of_ours_is_not_replaced_by_a_number_of_the_same_name(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw", result={"marin/files": -1, "marin/cache": 5})

    metadata = _metadata(step, instance)

    assert metadata["marin/files"] == 1
    assert metadata["marin/cache"] == "built"
