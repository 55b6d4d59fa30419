"""The record: written and read in Marin's form, the older forms read, and nothing else believed."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from helpers.cache import INFO, RECORD, begin, build, get, make, nothing, put, tree
from marin_dagster.cache import ArtifactRecord, Hit, OutputDir, StepCache, read_record, write_record
from marin_dagster.errors import OutputNotReadyError, RecordError
from marin_dagster.steps import StepSpec

OLD_INFO = {
    "name": "tokenized/old",
    "fn_name": "tokenize",
    "config": {"tokenizer": "llama3"},
    "version": {"tokenizer": "llama3"},
    "dependencies": ["/store/raw"],
    "output_path": "/store/old",
}


def read(step: StepSpec, name: str, content: Any) -> ArtifactRecord | None:
    """What the reader makes of one file in an output."""
    put(step, name, content if isinstance(content, (bytes, str)) else json.dumps(content))
    return read_record(OutputDir.at(step.output_path))


def test_a_record_says_what_was_built_from_what() -> None:
    raw = build(make("raw"))
    step = make(
        "tokens",
        raw,
        hash_attrs={"tokenizer": ("gpt2", 1), "n": {1: 2}},
        fingerprint_payload='{"x": 1}',
    )
    build(step, result={"tokens": 7})
    document = json.loads(get(step, RECORD) or "")
    provenance = document.pop("provenance")
    assert document == {
        "name": "tokens",
        "version": "",
        "fingerprint": "",
        "result_type": "",
        "output_path": step.output_path,
        "deps": [raw.name_with_hash],
        "dep_paths": [raw.output_path],
        "config": {"tokenizer": ["gpt2", 1], "n": {"1": 2}},
        "source": None,
        "result": {"tokens": 7},
        "fingerprint_payload": '{"x": 1}',
    }
    assert provenance.keys() == {
        *("tree_hash", "base_commit", "dirty", "branch"),
        *("built_by", "git_remote", "created_at", "command_line"),
    }


def test_dependencies_and_their_paths_stay_aligned() -> None:
    deps = [build(make(name)) for name in "zam"]
    step = build(make("step", deps[0], deps[1], deps[2], deps[0]))
    document = json.loads(get(step, RECORD) or "")
    assert document["deps"] == [f"{dep.name_with_hash}" for dep in (*deps, deps[0])]
    assert document["dep_paths"] == [dep.output_path for dep in (*deps, deps[0])]


def test_a_record_is_written_also_when_the_function_returns_nothing() -> None:
    step = build(make("step"))
    assert json.loads(get(step, RECORD) or "")["result"] is None


def test_a_written_record_is_read_back_the_same(tmp_path: Path) -> None:
    record = ArtifactRecord(name="é", deps=["a_1"], config={"x": [1, None]}, result={"y": "ü"})
    write_record(OutputDir.at(str(tmp_path)), record)
    assert read_record(OutputDir.at(str(tmp_path))) == record


def test_the_record_of_a_hit_is_read_when_it_is_asked_for() -> None:
    step = build(make("step"), result={"n": 1})
    hit = StepCache().begin(step)
    assert isinstance(hit, Hit)
    assert hit.record
    assert hit.record.result == {"n": 1}
    put(step, RECORD, "garbage")
    with pytest.raises(RecordError):
        _ = hit.record


def test_an_output_without_files_has_no_record(tmp_path: Path) -> None:
    assert read_record(OutputDir.at(str(tmp_path / "missing"))) is None


def test_the_schedulers_info_is_never_read_as_a_record() -> None:
    step = make("step", hash_attrs={"tokenizer": "x"})
    attempt = begin(step)
    assert get(step, INFO)
    assert read_record(OutputDir.at(step.output_path)) is None
    attempt.fail()
    assert read_record(OutputDir.at(step.output_path)) is None


class Unprintable:
    """A step's function whose text cannot be made."""

    def __call__(self, output_path: str) -> None:
        """Nothing."""

    def __repr__(self) -> str:
        raise ValueError("no text")


def test_a_function_without_a_text_is_recorded_as_its_type() -> None:
    step = build(make("step", fn=Unprintable()))
    assert json.loads(get(step, INFO) or "")["fn_name"] == "Unprintable"


def test_the_text_of_a_function_is_cut_after_its_credentials_are_removed() -> None:
    # The cut would go through the password.
    data = "x" * 900 + " https://me:" + "password" * 20 + "@host/ " + "y" * 100_000
    step = build(make("step", fn=partial(nothing, data)))
    text = json.loads(get(step, INFO) or "")["fn_name"]
    assert len(text) == 1000
    assert "password" not in text
    assert "https://host/ y" in text


def test_a_genuine_old_info_stands_in_for_a_missing_record() -> None:
    record = read(make("step"), INFO, OLD_INFO)
    assert record == ArtifactRecord(
        name="tokenized/old",
        config={"tokenizer": "llama3"},
        output_path="/store/old",
        deps=["/store/raw"],
    )


@pytest.mark.parametrize("missing", OLD_INFO)
def test_an_old_info_may_lack_any_field_or_hold_none(missing: str) -> None:
    without = {name: value for name, value in OLD_INFO.items() if name != missing}
    assert read(make("step"), INFO, without) is not None
    assert read(make("step"), INFO, OLD_INFO | {missing: None}) is not None


def test_a_record_goes_before_an_old_info() -> None:
    step = make("step")
    put(step, INFO, json.dumps(OLD_INFO))
    record = read(step, RECORD, {"name": "new"})
    assert record
    assert (record.name, record.config) == ("new", None)


@pytest.mark.parametrize(
    "payload",
    [
        {"version": "v1", "output_dir": "/x", "counters": {"n": 3}},
        {"loss": 0.5},
        {"tokens": 7, "config": {"a": 1}},
    ],
    ids=["with a version", "numbers", "with a config"],
)
def test_a_bare_old_payload_becomes_the_result(payload: dict[str, Any]) -> None:
    assert read(make("step"), RECORD, payload) == ArtifactRecord(result=payload)


def test_a_record_with_unknown_fields_stays_a_record() -> None:
    record = read(make("step"), RECORD, {"name": "step", "result": {"n": 1}, "future": 1})
    assert record
    assert (record.name, record.result) == ("step", {"n": 1})


def test_an_empty_object_is_an_empty_record() -> None:
    assert read(make("step"), RECORD, {}) == ArtifactRecord()


UNREADABLE: dict[str, Any] = {
    "empty": b"",
    "truncated": json.dumps({"name": "step", "config": {"a": 1}})[:-5],
    "two documents": "{}{}",
    "binary": b"\x00\xff\xfe",
    "a list": [{"name": "step"}],
    "null": "null",
    "text": '"step"',
    "a number": "7",
    "HTML": "<html>503</html>",
    "deeply nested": b'{"a":' + b"[" * 100_000,
    "the name is a number": {"name": 7},
    "the dependencies are text": {"name": "step", "deps": "raw"},
    "the result is a list": {"name": "step", "result": [1]},
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_record_is_an_error_naming_the_file(content: Any) -> None:
    step = make("step")
    put(step, INFO, json.dumps(OLD_INFO))
    with pytest.raises(RecordError, match="cannot be read") as caught:
        read(step, RECORD, content)
    assert f"{step.output_path}/{RECORD}" in str(caught.value)


UNREADABLE_INFO = {
    **{name: UNREADABLE[name] for name in ("empty", "truncated", "binary", "a list", "null")},
    "deeply nested": UNREADABLE["deeply nested"],
    "the name is a number": OLD_INFO | {"name": 7},
    "the config is text": OLD_INFO | {"config": "tokenizer"},
    "the dependencies are objects": OLD_INFO | {"dependencies": [{"name": "raw"}]},
    "the dependencies are a number": OLD_INFO | {"dependencies": 7},
}


@pytest.mark.parametrize("content", UNREADABLE_INFO.values(), ids=UNREADABLE_INFO)
def test_an_unreadable_old_info_is_an_error_naming_the_file(content: Any) -> None:
    step = make("step")
    with pytest.raises(RecordError, match="cannot be read") as caught:
        read(step, INFO, content)
    assert f"{step.output_path}/{INFO}" in str(caught.value)


def test_reading_a_record_changes_nothing(tmp_path: Path) -> None:
    step = build(make("step"))
    before = tree(step.output_path)
    read_record(OutputDir.at(step.output_path))
    assert tree(step.output_path) == before


class Tokens(BaseModel):
    """A typed result."""

    count: int


def test_a_result_is_loaded_as_a_model() -> None:
    record = ArtifactRecord(result={"count": 7, "more": 1})
    assert record.typed_result(Tokens, where="step x (/store/x)") == Tokens(count=7)


class Renamed(BaseModel):
    """A typed result whose field has another name outside."""

    count: int = Field(alias="n")


def test_a_model_that_was_returned_is_loaded_as_it_was_whatever_its_fields_are_called() -> None:
    step = build(make("step"), result=Renamed(n=7))
    record = read_record(OutputDir.at(step.output_path))
    assert record
    assert record.typed_result(Renamed, where="step x (/store/x)") == Renamed(n=7)


@pytest.mark.parametrize("result", [None, {}, {"count": "many"}], ids=repr)
def test_a_result_that_is_missing_or_does_not_fit_is_an_error_naming_step_and_path(
    result: Any,
) -> None:
    with pytest.raises(OutputNotReadyError, match=r"step x \(/store/x\).*Tokens"):
        ArtifactRecord(result=result).typed_result(Tokens, where="step x (/store/x)")
