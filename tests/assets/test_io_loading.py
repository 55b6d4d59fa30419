"""``load_input``: what an ordinary asset downstream of a step receives, by its annotation."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import BaseModel

from helpers.runs import Recorder, Run, run_job
from marin_dagster import (
    MarinIOManager,
    StepOutput,
    StepSpec,
    build_definitions,
    build_marin_assets,
    marin_executor,
)
from marin_dagster.lazy import OUT, apply


class Scores(BaseModel):
    """The result of the step in these tests."""

    tokens: int
    split: str = "train"


class Other(BaseModel):
    """Something that the result is not."""

    perplexity: float


RESULT = {"tokens": 7, "split": "val"}


def _definitions(step: StepSpec, *readers: dg.AssetsDefinition) -> dg.Definitions:
    return dg.Definitions(
        assets=[*build_marin_assets([step]), *readers],
        resources={"marin_io_manager": MarinIOManager(), "io_manager": dg.mem_io_manager},
        jobs=[
            dg.define_asset_job(
                "mixed", selection=dg.AssetSelection.all(), executor_def=marin_executor
            )
        ],
    )


def _annotated(annotation: Any, received: list[Any]) -> Callable[..., None]:
    """A function that takes ``corpus`` as ``annotation``; Ellipsis for none."""

    def reader(corpus):  # type: ignore[no-untyped-def]
        received.append(corpus)

    if annotation is not ...:
        reader.__annotations__["corpus"] = annotation
    return reader


def _reader(annotation: Any, received: list[Any]) -> dg.AssetsDefinition:
    """An ordinary asset that reads ``corpus`` as ``annotation``; Ellipsis for none."""
    return dg.asset(_annotated(annotation, received))


def _load(
    step: StepSpec, annotation: Any, instance: dg.DagsterInstance, *, later: bool = False
) -> tuple[Run, list[Any]]:
    received: list[Any] = []
    definitions = _definitions(step, _reader(annotation, received))
    if later:
        assert run_job(definitions, instance, job="mixed", select=["corpus"]).success
        return run_job(definitions, instance, job="mixed", select=["reader"]), received
    return run_job(definitions, instance, job="mixed"), received


@pytest.mark.parametrize("later", [False, True], ids=["same run", "later run"])
@pytest.mark.parametrize("annotation", [str, Path, Scores, dict, dict[str, Any], ...])
def test_the_annotation_decides_what_is_loaded(
    annotation: Any, later: bool, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus", result=RESULT)

    run, received = _load(step, annotation, instance, later=later)

    assert run.success
    (value,) = received
    if annotation is str:
        assert value == step.output_path
    elif annotation is Path:
        assert value == Path(step.output_path)
        assert isinstance(value, Path)
    elif annotation is Scores:
        assert value == Scores(tokens=7, split="val")
    elif annotation in (dict, dict[str, Any]):
        assert value == RESULT
    else:
        assert isinstance(value, StepOutput)


@pytest.mark.parametrize("annotation", [StepOutput, Any, ...])
def test_a_step_output_says_where_it_lies_which_step_made_it_and_what_it_returned(
    annotation: Any, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus", result=RESULT)

    _, received = _load(step, annotation, instance)

    (value,) = received
    assert value.path == step.output_path
    assert value.name_with_hash == step.name_with_hash
    assert value.result == RESULT
    assert value.record.name == "corpus"


@pytest.mark.parametrize("annotation", [str | None, Scores | None, Mapping])
def test_an_optional_or_wider_annotation_loads_like_the_plain_one(
    annotation: Any, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus", result=RESULT)

    run, received = _load(step, annotation, instance)

    assert run.success
    if annotation == (str | None):
        assert received == [step.output_path]
    elif annotation == (Scores | None):
        assert received == [Scores(**RESULT)]
    else:
        assert received == [RESULT]


def test_an_output_served_from_the_cache_loads_in_the_run_that_observes_it(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus", result=RESULT)
    received: list[Any] = []
    definitions = _definitions(step, _reader(Scores, received))

    first, second = (run_job(definitions, instance, job="mixed") for _ in range(2))

    assert first.success
    assert second.success
    assert second.observed() == ["corpus"]
    assert recorder.calls == ["corpus"]
    assert received == [Scores(**RESULT)] * 2


def test_a_step_that_returned_nothing_loads_as_an_empty_dictionary(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    _, received = _load(recorder.step("corpus"), dict, instance)

    assert received == [{}]


def test_an_output_that_is_missing_is_an_error_naming_step_and_path(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus")
    definitions = _definitions(step, _reader(str, []))

    run = run_job(definitions, instance, job="mixed", select=["reader"])

    assert not run.success
    assert "OutputNotReadyError" in run.error("reader")
    assert step.name_with_hash in run.error("reader")
    assert step.output_path in run.error("reader")
    assert not Path(step.output_path).exists()


@pytest.mark.parametrize("status", ["RUNNING", "FAILED", "", "nonsense"])
def test_an_output_that_is_not_finished_is_an_error(
    status: str, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus", result=RESULT)
    received: list[Any] = []
    definitions = _definitions(step, _reader(str, received))
    run_job(definitions, instance, job="mixed", select=["corpus"])
    Path(step.output_path, ".executor_status").write_text(status)

    run = run_job(definitions, instance, job="mixed", select=["reader"])

    assert not run.success
    assert received == []
    assert "is not finished" in run.error("reader")
    assert (status if status in ("RUNNING", "FAILED") else "missing") in run.error("reader")


@pytest.mark.parametrize("annotation", [Scores, dict, dict[str, Any]])
def test_success_without_a_record_cannot_be_loaded_as_its_result(
    annotation: Any, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus", result=RESULT)
    received: list[Any] = []
    definitions = _definitions(step, _reader(annotation, received))
    run_job(definitions, instance, job="mixed", select=["corpus"])
    Path(step.output_path, ".artifact.json").unlink()

    run = run_job(definitions, instance, job="mixed", select=["reader"])

    assert not run.success
    assert received == []
    for text in ("OutputNotReadyError", step.name_with_hash, step.output_path, "no record"):
        assert text in run.error("reader")


@pytest.mark.parametrize("annotation", [str, Path, StepOutput])
def test_success_without_a_record_still_loads_as_its_place(
    annotation: Any, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus")
    Path(step.output_path).mkdir(parents=True)
    Path(step.output_path, ".executor_status").write_text("SUCCESS")

    run, received = _load(step, annotation, instance)

    assert run.success
    if annotation is StepOutput:
        assert received == [StepOutput(step.output_path, step.name_with_hash, None)]
    else:
        assert received == [annotation(step.output_path)]


def _elsewhere(annotation: Any, received: list[Any]) -> dg.Definitions:
    """Another code location, which knows ``corpus`` by its key alone."""
    return dg.Definitions(
        assets=[
            dg.AssetSpec("corpus"),
            dg.asset(ins={"corpus": dg.AssetIn(input_manager_key="marin_io_manager")})(
                _annotated(annotation, received)
            ),
        ],
        resources={"marin_io_manager": MarinIOManager(), "io_manager": dg.mem_io_manager},
        jobs=[
            dg.define_asset_job(
                "reading", selection=["reader"], executor_def=dg.in_process_executor
            )
        ],
    )


@pytest.mark.parametrize("annotation", [str, Path, Scores, dict, StepOutput])
def test_a_step_of_another_location_loads_from_its_last_materialization(
    annotation: Any, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus", result=RESULT)
    assert run_job(build_definitions([step]), instance).success
    received: list[Any] = []

    run = run_job(_elsewhere(annotation, received), instance, job="reading")

    assert run.success
    (value,) = received
    if annotation is StepOutput:
        assert value.path == step.output_path
        assert value.name_with_hash == step.name_with_hash
        assert value.result == RESULT
    elif annotation in (str, Path):
        assert value == annotation(step.output_path)
    else:
        assert value == annotation(**RESULT)


def _write(out: str) -> None:
    Path(out, "data.txt").write_text("tokens")


def test_a_lazy_artifact_of_another_location_is_called_by_its_address(
    instance: dg.DagsterInstance,
) -> None:
    corpus = apply("corpus", _write, version="2026.07.01", out=OUT)
    assert run_job(build_definitions([corpus]), instance).success
    received: list[Any] = []

    assert run_job(_elsewhere(StepOutput, received), instance, job="reading").success

    assert [value.name_with_hash for value in received] == ["corpus/2026.07.01"]


@pytest.mark.parametrize("foreign", [False, True], ids=["never built", "built by others"])
def test_what_no_step_has_built_is_an_error_that_says_what_to_do(
    foreign: bool, instance: dg.DagsterInstance
) -> None:
    if foreign:
        instance.report_runless_asset_event(dg.AssetMaterialization("corpus"))

    run = run_job(_elsewhere(str, []), instance, job="reading")

    assert "StepError" in run.error("reader")
    assert "materialize it there first" in run.error("reader")
    assert "no step" not in run.error("reader")


def test_an_output_of_another_location_that_is_gone_is_an_error(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("corpus", result=RESULT)
    assert run_job(build_definitions([step]), instance).success
    shutil.rmtree(step.output_path)

    run = run_job(_elsewhere(str, []), instance, job="reading")

    assert "is not finished (status: missing)" in run.error("reader")
    assert step.output_path in run.error("reader")
