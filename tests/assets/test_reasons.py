"""Why a step ran: in its materialization, and in its log."""

import re
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Recorder, Run, metadata_of, run_job
from helpers.step_functions import write
from marin_dagster import ResourceConfig, StepRunner, StepSpec, build_definitions
from marin_dagster.errors import MarinDagsterWarning
from marin_dagster.lazy import OUT, ArtifactStep, apply


def build(instance: dg.DagsterInstance, *steps: Any, **options: Any) -> Run:
    """Materialize everything."""
    return run_job(build_definitions(steps), instance, **options)


def reasons(run: Run, key: str) -> list[str]:
    """Why an asset was materialized, sentence by sentence."""
    reason: str = metadata_of(run.materialized()[key])["marin/reason"]
    return re.findall(r"\S.*?\.(?= [A-Z]|$)", reason)


def logged(instance: dg.DagsterInstance, run_id: str, step_key: str) -> list[str]:
    """Why a step runs, line by line, as the run's log has it."""
    entries = instance.all_logs(run_id)
    found = [entry.user_message for entry in entries if entry.step_key == step_key]
    return [line for text in found if " runs: " in text for line in text.splitlines()]


def test_a_first_build(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    step = recorder.step("train")

    run = build(instance, step)

    why = "First build: no earlier output of train is known."
    assert reasons(run, "train") == [why]
    assert "marin/compared_with" not in metadata_of(run.materialized()["train"])
    assert logged(instance, run.run_id, "train") == [f"{step.name_with_hash} runs: {why}"]


def test_changed_attributes_and_what_reads_the_step(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    def chain(lr: int) -> tuple[StepSpec, StepSpec]:
        train = recorder.step("train", hash_attrs={"model": {"lr": lr}, "seed": 0})
        return train, recorder.step("evaluate", train)

    old, new = chain(1), chain(2)
    build(instance, *old)

    run = build(instance, *new)

    assert reasons(run, "train") == ["Attribute model.lr: 1 -> 2."]
    change = f"Upstream train changed: {old[0].hash_id} -> {new[0].hash_id}."
    assert reasons(run, "evaluate") == [change]
    for step in old:
        metadata = metadata_of(run.materialized()[step.name])
        assert metadata["marin/compared_with"] == step.output_path
    name = new[0].name_with_hash
    assert logged(instance, run.run_id, "train") == [f"{name} runs: Attribute model.lr: 1 -> 2."]


def test_several_reasons_are_a_sentence_each_in_one_line(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    build(instance, recorder.step("train", hash_attrs={"lr": 1, "note": "a\nb"}))
    run = build(instance, recorder.step("train", hash_attrs={"lr": 2, "note": "c"}))

    reason = "Attribute lr: 1 -> 2. Attribute note: 'a\\nb' -> 'c'."
    assert metadata_of(run.materialized()["train"])["marin/reason"] == reason
    (line,) = logged(instance, run.run_id, "train")
    assert line.endswith(f" runs: {reason}")


def test_a_hit_says_that_nothing_ran(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    step = recorder.step("train")
    build(instance, step)

    with dg.DagsterInstance.ephemeral() as other:
        run = build(other, step)

    assert metadata_of(run.materialized()["train"])["marin/cache"] == "hit"
    assert reasons(run, "train") == ["Nothing ran: the output was finished."]


def test_a_forced_step(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    step = recorder.step("train")
    build(instance, step)

    run = build(instance, step, config={"force": True})

    assert reasons(run, "train") == ["Forced: its output was finished."]


def test_a_step_that_failed_says_so_once_it_runs_again(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    build(instance, recorder.step("train", hash_attrs={"lr": 1}))
    failed = build(instance, recorder.step("train", hash_attrs={"lr": 2}, fails=True))
    assert not failed.success
    # No materialization has the reason; the log does.
    (line,) = logged(instance, failed.run_id, "train")
    assert line.endswith(" runs: Attribute lr: 1 -> 2.")

    run = build(instance, recorder.step("train", hash_attrs={"lr": 2}))

    change, failure = reasons(run, "train")
    assert change == "Attribute lr: 1 -> 2."
    assert failure.startswith("The last attempt failed at 20")


def test_an_output_that_was_removed(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    step = recorder.step("train", hash_attrs={"lr": 2})
    build(instance, recorder.step("train", hash_attrs={"lr": 1}))
    build(instance, step)
    shutil.rmtree(step.output_path)

    (line,) = reasons(build(instance, step), "train")

    assert line.startswith("Its output was removed from the store; it was recorded at 20")


def test_a_new_store(
    recorder: Recorder,
    instance: dg.DagsterInstance,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = recorder.step("train", hash_attrs={"lr": 1})
    build(instance, old)
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "other"))

    again = build(instance, recorder.step("train", hash_attrs={"lr": 1}))
    assert reasons(again, "train") == [f"Built before in another place: {old.output_path}."]
    changed = build(instance, recorder.step("train", hash_attrs={"lr": 2}))
    assert reasons(changed, "train") == ["Attribute lr: 1 -> 2."]


def test_another_instance_reads_the_store(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    build(instance, recorder.step("train", hash_attrs={"lr": 1}))

    with dg.DagsterInstance.ephemeral() as other:
        run = build(other, recorder.step("train", hash_attrs={"lr": 2}))

    assert reasons(run, "train") == ["Attribute lr: 1 -> 2."]


def test_steps_of_one_name_in_one_graph_are_not_compared(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    sweep = [recorder.step("train", hash_attrs={"lr": lr}) for lr in (1, 2)]
    build(instance, sweep[0])

    with pytest.warns(MarinDagsterWarning, match="train"):
        run = build(instance, *sweep)

    (built,) = (metadata_of(made) for made in run.materialized().values() if _is_build(made))
    assert built["marin/reason"] == (
        "First build: no earlier output of train is known, other than steps of this graph."
    )


def _is_build(made: dg.AssetMaterialization) -> bool:
    return metadata_of(made)["marin/cache"] == "built"


def make(out: str, size: int) -> None:
    Path(out, "data.txt").write_text(str(size))


def tokens(version: str, size: int) -> ArtifactStep[Any]:
    return apply("tokens", make, version=version, out=OUT, size=size)


def test_versions_of_artifacts(instance: dg.DagsterInstance) -> None:
    build(instance, tokens("2026.01.01", 1))
    run = build(instance, tokens("2026.02.01", 2))
    version, change = reasons(run, "tokens")
    assert version == "Version 2026.01.01 -> 2026.02.01."
    assert change == "Config size: 1 -> 2."

    dev = build(instance, tokens("dev", 2))
    assert reasons(dev, "tokens") == [
        "Version dev: built every time.",
        "Version 2026.02.01 -> dev.",
    ]
    assert reasons(build(instance, tokens("dev", 2)), "tokens") == [
        "Version dev: built every time."
    ]


def test_a_step_in_a_job_of_its_own(instance: dg.DagsterInstance) -> None:
    def step(n: int) -> StepSpec:
        return StepSpec("train", hash_attrs={"n": n}, fn=write, resources=ResourceConfig(cpu=1))

    build(instance, step(1))
    run = build(instance, step(2))

    metadata = metadata_of(run.materialized()["train"])
    assert metadata["marin/runner"] == "process"
    assert metadata["marin/reason"] == "Attribute n: 1 -> 2."


def test_a_step_runner(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    for lr in (1, 2):
        StepRunner(instance=instance).run([recorder.step("train", hash_attrs={"lr": lr})])

    (run, _) = instance.get_runs()
    (line,) = logged(instance, run.run_id, "train")
    assert line.endswith(" runs: Attribute lr: 1 -> 2.")


def test_another_executor(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    def run(lr: int) -> dg.ExecuteInProcessResult:
        train = recorder.step("train", hash_attrs={"lr": lr})
        definitions = build_definitions([train], executor=dg.in_process_executor)
        job = definitions.resolve_job_def("materialize_steps")
        return job.execute_in_process(instance=instance)

    run(1)
    (event,) = run(2).asset_materializations_for_node("train")

    assert metadata_of(event)["marin/reason"] == "Attribute lr: 1 -> 2."


def test_the_instance_is_asked_once_for_all_steps(
    recorder: Recorder, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = instance.get_asset_records

    def counted(keys: Any = None) -> Any:
        asked.append(len(keys))
        return ask(keys)

    monkeypatch.setattr(instance, "get_asset_records", counted)

    assert build(instance, *[recorder.step(f"step{n}") for n in range(5)]).success
    assert asked == [5]


def test_an_instance_that_refuses_stops_nothing(
    recorder: Recorder, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(instance, recorder.step("train", hash_attrs={"lr": 1}))

    def refuse(keys: Any = None) -> Any:
        raise RuntimeError("no database today")

    monkeypatch.setattr(instance, "get_asset_records", refuse)

    run = build(instance, recorder.step("train", hash_attrs={"lr": 2}))

    assert run.success
    assert reasons(run, "train") == ["Attribute lr: 1 -> 2."]
