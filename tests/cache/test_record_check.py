"""Whether the files beside an output agree with its step."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from helpers.cache import RECORD, STATUS, begin, build, get, make, put
from marin_dagster.cache import Status
from marin_dagster.cache.record_check import check_integrity
from marin_dagster.steps import StepSpec


def changed(step: StepSpec, **fields: Any) -> None:
    """Change fields of a step's record."""
    put(step, RECORD, json.dumps(json.loads(get(step, RECORD) or "") | fields))


def faults(step: StepSpec) -> str:
    look = check_integrity(step)
    assert look.status is Status.SUCCESS
    return "\n".join(look.faults)


def test_what_a_step_has_built_agrees_with_it() -> None:
    raw = build(make("raw"))
    attributes = {"rate": math.nan, "deep": {"é": [1, None, "x"]}, "most": math.inf}
    step = build(make("clean", raw, hash_attrs=attributes))
    look = check_integrity(step)
    assert (look.status, look.faults, look.drift) == (Status.SUCCESS, (), None)


def test_what_is_not_finished_is_not_judged() -> None:
    step = make("raw")
    assert check_integrity(step).status is None
    attempt = begin(step)
    assert check_integrity(step).status is Status.RUNNING
    attempt.fail()
    look = check_integrity(step)
    assert (look.status, look.faults) == (Status.FAILED, ())


def test_a_missing_record_is_a_fault() -> None:
    step = make("raw")
    put(step, STATUS, "SUCCESS")
    assert faults(step) == ".executor_status holds SUCCESS, but .artifact.json is missing."


def test_a_record_that_cannot_be_opened_is_a_fault() -> None:
    step = make("raw")
    put(step, STATUS, "SUCCESS")
    Path(step.output_path, RECORD).mkdir()
    assert f"refused to read {step.output_path}/.artifact.json" in faults(step)


@pytest.mark.parametrize("content", ["{", "[]", '{"name": 3}', ""])
def test_a_record_that_cannot_be_read(content: str) -> None:
    step = build(make("raw"))
    put(step, RECORD, content)
    assert f"{step.output_path}/.artifact.json cannot be read" in faults(step)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"name": "other"}, "belongs to the step 'other'"),
        ({"version": "2026.01.01"}, "belongs to the version '2026.01.01'"),
        ({"config": {"size": 2}}, "than the step, recorded -> declared: size: 2 -> 1."),
        ({"deps": []}, "has other dependencies than the step: it lacks 'raw_"),
        ({"deps": ["raw_00000000"]}, "it has 'raw_00000000'; it lacks 'raw_"),
    ],
)
def test_a_record_of_something_else(fields: dict[str, Any], fault: str) -> None:
    step = build(make("clean", build(make("raw")), hash_attrs={"size": 1}))
    changed(step, **fields)
    assert fault in faults(step)
    assert len(check_integrity(step).faults) == 1


def test_of_much_that_differs_a_few_are_named() -> None:
    raw = [build(make("raw", hash_attrs={"n": n})) for n in range(10)]
    step = build(make("clean", *raw, hash_attrs={"text": "x" * 10_000, "size": 1}))
    others = [f"{n:04}" + "d" * 10_000 for n in range(300)]
    attributes = {f"{n:04}" + "k" * 10_000: "v" * 10_000 for n in range(300)}
    changed(step, config={"text": "x" * 10_000} | attributes, deps=[*step.dep_names[1:], *others])

    text = faults(step)

    assert step.dep_names[0] in text
    assert step.dep_names[1] not in text
    assert "and 295 more" in text  # of the dependencies
    assert "and 281 more" in text  # of the attributes
    assert len(text) < 10_000


def test_of_a_record_full_of_faults_the_first_are_told() -> None:
    step = build(make("raw"))
    changed(step, deps=list(range(1_000)))

    assert "1000 validation errors" in faults(step)
    assert "Restore it" in faults(step)
    assert len(faults(step)) < 1_000 + len(step.output_path)


def test_a_name_of_any_length_is_cut() -> None:
    step = build(make("raw"))
    changed(step, name="n" * 10_000, version="v" * 10_000)

    assert len(faults(step)) < 300


def test_a_moved_store_still_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(make("clean", build(make("raw"))))
    (tmp_path / "store").rename(tmp_path / "moved")
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "moved"))
    assert faults(make("clean", make("raw"))) == ""


def test_older_forms_are_compared_in_what_they_tell() -> None:
    raw = build(make("raw"))
    bare, old = make("bare", raw), make("old", raw)
    put(bare, STATUS, "SUCCESS")
    put(bare, RECORD, '{"accuracy": 0.5}')
    put(old, STATUS, "SUCCESS")
    info = {"name": "old", "config": {}, "dependencies": [raw.output_path]}
    put(old, ".executor_info", json.dumps(info))
    assert [faults(bare), faults(old)] == ["", ""]
    # What it ran with, at that time's addresses, and no attributes that were hashed.
    other = {"config": {"resolved": "/path"}, "dependencies": ["gs://elsewhere/raw"]}
    put(old, ".executor_info", json.dumps(info | other))
    assert faults(old) == ""
    put(old, ".executor_info", json.dumps(info | {"name": "other"}))
    assert "belongs to the step 'other'" in faults(old)


def test_what_a_step_writes_as_its_own_record_is_its_own_business() -> None:
    step = make("raw", hash_attrs={"size": 1}, writes_record=True)
    attempt = begin(step)
    put(step, RECORD, '{"name": "raw", "config": {"anything": true}, "deps": ["what it likes"]}')
    attempt.commit()
    assert faults(step) == ""
    put(step, RECORD, '{"name": "other"}')
    assert "belongs to the step 'other'" in faults(step)
