"""What a function may return: kept in the record as JSON, or refused with the place and the why."""

import json
import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from helpers.cache import LOCK, RECORD, STATUS, begin, build, get, make
from marin_dagster.cache import OutputDir, read_record
from marin_dagster.errors import ResultError


@dataclass
class Metrics:
    """A dataclass result."""

    loss: float
    by_domain: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Slotted:
    """A dataclass result without a dictionary."""

    inner: Any


class Report(BaseModel):
    """A pydantic result."""

    path: Path
    at: datetime
    inner: dict[str, int] = {}


class Split(Enum):
    """An enumeration."""

    TRAIN = "train"


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

KEPT: dict[str, tuple[Any, Any]] = {
    "nothing": (None, None),
    "an empty dictionary": ({}, {}),
    "a dictionary": ({"a": [1, {"b": None}], "é": True}, {"a": [1, {"b": None}], "é": True}),
    "a dataclass": (Metrics(0.5, {"web": 1}), {"loss": 0.5, "by_domain": {"web": 1}}),
    "a slotted dataclass": (Slotted({"n": np.int64(1)}), {"inner": {"n": 1}}),
    "a pydantic model": (
        Report(path=Path("/x"), at=AT, inner={"n": 1}),
        {"path": "/x", "at": "2026-01-02T03:04:05Z", "inner": {"n": 1}},
    ),
    "a dataclass and a model inside": (
        {"m": Metrics(1.5), "r": [Report(path=Path("y"), at=AT)]},
        {
            "m": {"loss": 1.5, "by_domain": {}},
            "r": [{"path": "y", "at": "2026-01-02T03:04:05Z", "inner": {}}],
        },
    ),
    "numpy numbers": (
        {"loss": np.float32(0.5), "n": np.int64(7), "ok": np.bool_(True), "x": np.float64(2.5)},
        {"loss": 0.5, "n": 7, "ok": True, "x": 2.5},
    ),
    "numpy numbers deep inside": (
        {"by": [{"web": (np.int32(1), np.float16(0.25))}], "zero-dim": np.array(3.5)},
        {"by": [{"web": [1, 0.25]}], "zero-dim": 3.5},
    ),
    "a numpy number in a dataclass": (
        Metrics(loss=np.float32(0.5), by_domain={"n": np.int64(2)}),  # type: ignore[arg-type]
        {"loss": 0.5, "by_domain": {"n": 2}},
    ),
    "paths and times": (
        {"path": Path("/x/y"), "at": AT, "day": date(2026, 1, 2), "split": Split.TRAIN},
        {"path": "/x/y", "at": "2026-01-02T03:04:05Z", "day": "2026-01-02", "split": "train"},
    ),
    "keys that are no text": ({1: "a", Split.TRAIN: "b"}, {"1": "a", "train": "b"}),
    "tuples": ({"shape": (1, 2)}, {"shape": [1, 2]}),
    "a set of numbers": ({"seen": {1}}, {"seen": [1]}),
}


@pytest.mark.parametrize(("result", "kept"), KEPT.values(), ids=KEPT)
def test_a_result_is_kept_as_json(result: Any, kept: Any) -> None:
    step = build(make("step"), result=result)
    found = read_record(OutputDir.at(step.output_path))
    assert found
    assert found.result == kept
    assert type(found.result) is type(kept)


def test_numbers_that_json_does_not_have_leave_a_record_that_everyone_can_read() -> None:
    result = {"loss": math.nan, "ppl": [math.inf, -math.inf], "numpy": np.float32("nan"), "n": 1}
    step = build(make("step"), result=result)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document = json.loads(get(step, RECORD) or "", parse_constant=refuse)
    assert document["result"].keys() == result.keys()
    assert document["result"]["n"] == 1
    assert read_record(OutputDir.at(step.output_path))
    assert get(step, STATUS) == "SUCCESS"


class Plain:
    """An object that is not JSON."""


REFUSED: dict[str, tuple[Any, str]] = {
    "a number": (0.5, "0.5, a float"),
    "a numpy number": (np.float32(0.5), "a float32"),
    "text": ("done", "'done', a str"),
    "a list": ([1, 2], "[1, 2], a list"),
    "a boolean": (True, "True, a bool"),
    "a path": (Path("/x"), "a PosixPath"),
    "an object": (Plain(), "a Plain"),
    "a class": (Metrics, "result: "),
    "an array": ({"weights": np.arange(3)}, "result.weights"),
    "a set of objects": ({"metrics": {"seen": {Plain()}}}, "result.metrics.seen"),
    "an object in a list": ({"runs": [1, [Plain()]]}, "result.runs[1][0]"),
    "a function": ({"score": len}, "result.score"),
    "bytes that are no text": ({"magic": b"\xff"}, "result.magic"),
    "text that is not Unicode": ({"file": "caf\udce9"}, "result.file"),
    "an object behind a path and a time": (
        {"path": Path("x"), "at": AT, "n": np.int64(1), "bad": Plain()},
        "result.bad",
    ),
    "an object in a slotted dataclass": (Slotted([1, Plain()]), "result.inner[1]"),
    "an object in a dataclass": (Metrics(0.5, {"web": Plain()}), "result.by_domain.web"),
    "an object in a dataclass in a dictionary": (
        {"r": Metrics(1.0, {"deep": [Plain()]})},
        "result.r.by_domain.deep[0]",
    ),
}


@pytest.mark.parametrize(("result", "place"), REFUSED.values(), ids=REFUSED)
def test_a_result_that_a_record_cannot_hold_is_refused_by_step_and_place(
    result: Any, place: str
) -> None:
    step = make("step")
    attempt = begin(step)
    attempt.result = result
    with pytest.raises(ResultError) as caught:
        attempt.commit()
    assert step.name_with_hash in str(caught.value)
    assert f"{place}" in str(caught.value)
    assert len(str(caught.value)) < 1_000
    assert (get(step, STATUS), get(step, LOCK), get(step, RECORD)) == ("FAILED", None, None)


def circle() -> dict[str, Any]:
    outer: dict[str, Any] = {"down": []}
    outer["down"].append(outer)
    return outer


def nested() -> dict[str, Any]:
    value: Any = 1
    for _ in range(20_000):
        value = [value]
    return {"tree": value}


@pytest.mark.parametrize("result", [circle(), nested()], ids=["circle", "deep nesting"])
def test_a_result_without_end_is_refused(result: Any) -> None:
    step = make("step")
    attempt = begin(step)
    attempt.result = result
    with pytest.raises(ResultError, match=step.name_with_hash):
        attempt.commit()
    assert (get(step, STATUS), get(step, LOCK), get(step, RECORD)) == ("FAILED", None, None)


def test_a_result_error_is_a_type_error() -> None:
    attempt = begin(make("step"))
    attempt.result = 7
    with pytest.raises(TypeError):
        attempt.commit()
