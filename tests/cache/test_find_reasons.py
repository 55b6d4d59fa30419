"""Why a step runs: the comparison with earlier outputs, and where they are looked for."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.cache import LOCK, STATUS, begin, build, lease, make, put, why
from marin_dagster.cache import ArtifactRecord
from marin_dagster.cache.reasons import LastBuild, Reasons, compare
from marin_dagster.cache.record import step_record
from marin_dagster.lazy import Artifact, ArtifactStep
from marin_dagster.steps import StepSpec
from marin_dagster.steps.diff import changes


def difference(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """How a step with attributes differs from the record of one with others."""
    record = step_record(make("step", hash_attrs=old), None)
    read_back = ArtifactRecord.model_validate_json(record.model_dump_json())
    return compare(read_back, make("step", hash_attrs=new))


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["attribute a.b: 1 -> 2"]),
        ({"a": 1}, {"b": 1}, ["attribute a: removed 1", "attribute b: added 1"]),
        ({"a": 1}, {"a": 1.0}, ["attribute a: 1 -> 1.0"]),
        ({"a": 1}, {"a": True}, ["attribute a: 1 -> True"]),
        ({"a": [[1, 2], [3]]}, {"a": [[1, 5], [3]]}, ["attribute a[0][1]: 2 -> 5"]),
        ({"a": [1, 2]}, {"a": [1]}, ["attribute a: [1, 2] -> [1]"]),
        ({"a": [0] * 50}, {"a": [0] * 51}, ["attribute a: 50 items -> 51 items"]),
        ({"a": (1, 2)}, {"a": [1, 2]}, []),
        ({"a": float("nan")}, {"a": float("nan")}, []),
        ({"a": 1}, {"a": float("inf")}, ["attribute a: 1 -> None"]),
        ({"a": {"b": 1}}, {"a": []}, ["attribute a: {'b': 1} -> []"]),
        ({1: "x"}, {"1": "y"}, ["attribute 1: 'x' -> 'y'"]),
        ({"a\nb": 1}, {"a\nb": 2}, [r"attribute 'a\nb': 1 -> 2"]),
    ],
)
def test_each_field_that_differs_is_one_line(
    old: dict[str, Any], new: dict[str, Any], lines: list[str]
) -> None:
    assert difference(old, new) == lines


def test_roots_need_not_be_objects() -> None:
    assert changes([1], {"a": 1}) == ["the whole: [1] -> {'a': 1}"]
    assert changes(None, None) == []


def test_long_values_are_cut_down_to_where_they_differ() -> None:
    (line,) = difference({"a": "x" * 500 + "old"}, {"a": "x" * 500 + "new"})
    assert "xold' -> …" in line
    assert line.endswith("xnew'")
    assert len(line) < 120
    (line,) = difference({}, {"a": "y" * 500})
    assert line.startswith("attribute a: added 'yyy")
    assert line.endswith("y…")
    assert len(line) < 120


def test_of_many_differences_the_rest_is_counted() -> None:
    lines = difference({}, {str(n): n for n in range(30)})
    assert len(lines) == 21
    assert lines[-1] == "and 10 more"


def test_names_of_fields_are_cut_in_the_middle() -> None:
    old: Any = 1
    new: Any = 2
    for _ in range(20):
        old, new = {"k" * 1_000: [old]}, {"k" * 1_000: [new]}

    (line,) = difference({"model": old}, {"model": new})

    assert line.startswith("attribute model.kkk")
    assert line.endswith("kkk[0]: 1 -> 2")
    assert len(line) < 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON, JSON)
def test_whatever_differs_yields_a_line_and_what_does_not_yields_none(old: Any, new: Any) -> None:
    # As the identity of a step sees them.
    one, other = (json.dumps(value, sort_keys=True) for value in (old, new))
    lines = changes(json.loads(one), json.loads(other))
    assert bool(lines) == (one != other)
    assert not changes(old, old)
    assert not any("\n" in line for line in lines)


def test_attributes_too_deep_to_compare_are_said_to_be() -> None:
    deep: Any = 1
    for _ in range(600):
        deep = {"a": deep}
    record = ArtifactRecord(name="step", config=deep)

    (line,) = compare(record, make("step", hash_attrs={"a": 1}))

    assert line.startswith("attribute")


def test_upstream_steps_that_changed_came_and_went_are_named() -> None:
    raw, clean, odd = make("raw"), make("clean"), make("odd")
    record = step_record(make("step", raw, clean), None)
    other = make("raw", hash_attrs={"a": 1})

    assert compare(record, make("step", other, odd)) == [
        f"upstream clean removed: {clean.hash_id}",
        f"upstream odd added: {odd.hash_id}",
        f"upstream raw changed: {raw.hash_id} -> {other.hash_id}",
    ]


def test_of_many_upstream_steps_of_one_name_a_few_are_named() -> None:
    old = [make("shard", hash_attrs={"n": n}) for n in range(30)]
    new = [make("shard", hash_attrs={"n": n}) for n in range(100, 140)]

    (line,) = compare(step_record(make("step", *old), None), make("step", *new))

    before, after = (sorted(step.hash_id for step in steps)[:5] for steps in (old, new))
    assert line == (
        f"upstream shard changed: {', '.join(before)} and 25 more -> {', '.join(after)} and 35 more"
    )


def test_dependencies_of_a_record_are_cut() -> None:
    record = ArtifactRecord(name="step", config={}, deps=["n" * 10_000 + "_" + "v" * 10_000])

    (line,) = compare(record, make("step"))

    assert line.startswith("upstream nnn")
    assert len(line) < 250


def test_records_from_before_there_were_identities_name_paths() -> None:
    raw, other = make("raw"), make("raw", hash_attrs={"a": 1})
    record = ArtifactRecord(name="step", config={}, deps=[raw.output_path])

    assert compare(record, make("step", raw)) == []
    (line,) = compare(record, make("step", other))
    assert line.endswith(f"/raw changed: {raw.hash_id} -> {other.hash_id}")


def test_an_output_that_was_removed_is_said_to_be() -> None:
    step = make("step")
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    assert why(step, last=LastBuild(step.output_path, step.hash_id, at)).lines == (
        "its output was removed from the store; it was recorded at 2026-01-02 03:04:05 UTC",
    )


def test_a_status_that_was_removed_is_said_to_be() -> None:
    step = build(make("step"))
    Path(step.output_path, STATUS).unlink()

    (line,) = why(step).lines

    assert line == "its .executor_status was removed from the store; its record is still there"


@pytest.mark.parametrize("status", ["FAILED", "DEP_FAILED"])
def test_the_last_attempt_failed(status: str) -> None:
    build(make("step", hash_attrs={"n": 1}))
    step = make("step", hash_attrs={"n": 2})
    put(step, STATUS, status)
    os.utime(Path(step.output_path, STATUS), (1767323045, 1767323045))

    assert why(step).lines == (
        "attribute n: 1 -> 2",
        "the last attempt failed at 2026-01-02 03:04:05 UTC",
    )


def test_a_rebuild_that_failed_is_not_compared_with_others() -> None:
    build(make("step", hash_attrs={"n": 1}))
    step = build(make("step", hash_attrs={"n": 2}))
    put(step, STATUS, "FAILED")

    (line,) = why(step).lines

    assert line.startswith("the last attempt failed at ")


@pytest.mark.parametrize(
    ("lock", "line"),
    [
        (
            json.dumps({"worker_id": "host-1", "timestamp": 1767323045.5}),
            "interrupted: host-1, last seen 2026-01-02 03:04:05 UTC",
        ),
        (json.dumps({"worker_id": "host-1", "timestamp": -1e300}), "interrupted: host-1"),
    ],
)
def test_an_interrupted_attempt_names_its_worker(lock: str, line: str) -> None:
    step = make("step")
    put(step, STATUS, "RUNNING")
    put(step, LOCK, lock)

    assert why(step).lines == ("first build: no earlier output of step is known", line)


def test_an_interrupted_attempt_without_a_lock() -> None:
    step = make("step")
    put(step, STATUS, "RUNNING")
    os.utime(Path(step.output_path, STATUS), (1767323045, 1767323045))

    assert why(step).lines[-1] == (
        "interrupted: its worker left no lock; it began at 2026-01-02 03:04:05 UTC"
    )


def test_a_stale_lock_beside_a_finished_output_tells_nothing() -> None:
    step = build(make("step"))
    put(step, LOCK, lease(age_s=1e6))

    assert why(step, force=True).lines == ("forced: its output was finished",)


def artifact(version: str, n: int, *deps: ArtifactStep[Any]) -> ArtifactStep[Any]:
    return ArtifactStep(
        name="tokens",
        version=version,
        artifact_type=Artifact,
        run=lambda config: None,
        build_config=lambda context: {"n": n},
        deps=deps,
    )


def build_artifact(handle: ArtifactStep[Any]) -> StepSpec:
    step: Any = handle.lower()
    attempt = begin(step)
    step.fn(step.output_path)
    attempt.commit()
    return step


def test_a_new_version_of_an_artifact() -> None:
    old = build_artifact(artifact("2026.01.01", 1))
    new: Any = artifact("2026.02.01", 2).lower()

    assert why(new) == Reasons(
        ("version 2026.01.01 -> 2026.02.01", "config n: 1 -> 2"), old.output_path
    )


def test_a_dev_version_is_compared_with_itself() -> None:
    first: Any = artifact("dev", 1).lower()
    assert why(first).lines == (
        "version dev: built every time",
        "first build: no earlier output of tokens is known",
    )
    build_artifact(artifact("dev", 1))
    again: Any = artifact("dev", 1).lower()
    assert why(again).lines[0] == "version dev: built every time"

    build_artifact(artifact("dev", 1))
    changed: Any = artifact("dev", 2).lower()
    assert why(changed) == Reasons(("version dev: built every time", "config n: 1 -> 2"))
