"""Results that step functions read and write themselves, and errors that Marin's callers catch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from helpers.runs import Recorder
from marin_dagster import (
    ArtifactStep,
    ResourceConfig,
    StepRunner,
    StepsFailedError,
    StepSpec,
    read_artifact,
    write_artifact,
)
from marin_dagster.errors import AdoptedDataMissingError, OutputNotReadyError, ResultError


class Stats(BaseModel):
    count: int
    path: Path = Path("/x")


@dataclass
class Plain:
    count: int


@pytest.mark.parametrize("value", [Stats(count=3), Plain(3), {"count": 3}], ids=repr)
@pytest.mark.parametrize("where", ["relative", "absolute"])
def test_a_result_is_written_and_read_back(where: str, value: Any, store: Path) -> None:
    path = "stats/a" if where == "relative" else str(store / "stats/a")

    write_artifact(value, path)

    assert read_artifact(path, Stats) == Stats(count=3)
    document = json.loads((store / "stats/a/.artifact.json").read_text())
    assert document["output_path"] == str(store / "stats/a")


@pytest.mark.slow
def test_the_result_of_a_step_is_read(store: Path) -> None:
    step = StepSpec("count", fn=lambda output_path: {"count": 4})
    StepRunner().run([step])

    assert read_artifact(step.output_path, Stats).count == 4


def _write(output_path: str) -> None:
    write_artifact({"count": 5}, output_path)


@pytest.mark.slow
@pytest.mark.parametrize("resources", [None, ResourceConfig(ram="1g")], ids=["inline", "process"])
def test_a_steps_function_writes_its_result_and_the_next_one_reads_it(
    resources: ResourceConfig | None, store: Path
) -> None:
    first = StepSpec("first", fn=_write, resources=resources, writes_record=True)

    def read(output_path: str) -> Stats:
        return read_artifact(first.output_path, Stats)

    second = StepSpec("second", deps=[first], fn=read, resources=resources)

    StepRunner().run([second])

    assert read_artifact(second.output_path, Stats).count == 5
    document = json.loads(Path(first.output_path, ".artifact.json").read_text())
    assert document["result"] == {"count": 5}


@pytest.mark.parametrize("record", [None, {"name": "x"}, {"name": "x", "result": None}], ids=str)
def test_a_result_that_is_not_there_is_a_file_not_found(record: Any, tmp_path: Path) -> None:
    if record is not None:
        (tmp_path / ".artifact.json").write_text(json.dumps(record))

    with pytest.raises(FileNotFoundError, match=str(tmp_path)) as raised:
        read_artifact(str(tmp_path), Stats)

    assert isinstance(raised.value, OutputNotReadyError)


def test_what_does_not_fit_is_an_error(tmp_path: Path) -> None:
    write_artifact({"count": "many"}, str(tmp_path))

    with pytest.raises(
        OutputNotReadyError, match=rf"{tmp_path}: the recorded result is not a valid Stats"
    ):
        read_artifact(str(tmp_path), Stats)
    with pytest.raises(TypeError, match="pydantic model"):
        read_artifact(str(tmp_path), dict)  # type: ignore[type-var]
    with pytest.raises(ResultError, match=str(tmp_path)):
        write_artifact([1, 2], str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("broken", [["a"], ["a", "b"]], ids=str)
def test_a_failed_run_is_a_runtime_error_with_its_cause(broken: list[str]) -> None:
    recorder = Recorder()
    steps = [recorder.step(name, fails=name in broken) for name in ("a", "b", "c")]

    with pytest.raises(RuntimeError, match=f"{len(broken)} step") as raised:
        StepRunner().run(steps)

    error = raised.value
    assert isinstance(error, StepsFailedError)
    assert error.__cause__ is error.exceptions[0]
    assert isinstance(error.__cause__, RuntimeError)
    assert "fails on purpose" in str(error.__cause__)


def test_adopted_data_that_is_missing_is_a_file_not_found(tmp_path: Path) -> None:
    adopted = ArtifactStep.adopt("old", "2026.07.01", str(tmp_path / "nothing"))

    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run([adopted])

    assert isinstance(raised.value.__cause__, FileNotFoundError)
    assert isinstance(raised.value.__cause__, AdoptedDataMissingError)
    assert "does not exist" in str(raised.value.__cause__)
