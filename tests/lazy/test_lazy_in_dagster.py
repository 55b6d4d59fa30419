"""Lazy artifacts as assets: versions, drift, dev versions, adopted and pinned data."""

import dataclasses
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Recorder, memory_instance, metadata_of, run_job, status_of
from marin_dagster import StepRunner, build_definitions, marin_executor
from marin_dagster.errors import FingerprintMismatchError, StepsFailedError
from marin_dagster.lazy import OUT, ArtifactStep, apply, lower

pytestmark = pytest.mark.slow

V = "2026.07.01"

calls: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    calls.clear()


def make(out: str, size: int, sources: Any = ()) -> None:
    calls.append(Path(out).parent.name)
    Path(out, "data.txt").write_text(str(size))


def handle(name: str, size: int = 1, version: str = V, **more: Any) -> ArtifactStep[Any]:
    return apply(name, make, version=version, out=OUT, size=size, **more)


def test_version_fingerprint_and_type_show(instance: dg.DagsterInstance) -> None:
    raw = handle("raw")
    definitions = build_definitions([handle("tokens", sources=[raw]), raw])

    run = run_job(definitions, instance)

    assert run.success
    assert calls == ["raw", "tokens"]
    tags = run.materialized()["raw"].tags or {}
    assert tags["dagster/data_version"] == raw.fingerprint()
    assert tags["dagster/code_version"] == f"{V}-{raw.fingerprint()}"
    tokens = run.materialized()["tokens"].tags or {}
    assert tokens["dagster/input_data_version/raw"] == raw.fingerprint()
    spec = definitions.resolve_asset_graph().get(dg.AssetKey("raw"))
    assert spec.metadata["marin/version"] == V
    assert spec.metadata["marin/fingerprint"] == raw.fingerprint()
    assert spec.metadata["marin/result_type"] == "marin.execution.artifact.Artifact"


def fail(out: str) -> None:
    raise RuntimeError("on purpose")


@pytest.mark.parametrize(
    "config", [{}, {"force": ["raw/2026.07.01"]}, {"dry_run": True}, {"retry_failed": False}]
)
def test_an_artifact_is_called_by_its_address_and_never_by_a_hash(
    config: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    broken = apply("broken", fail, version=V, out=OUT)
    handles = [handle("tokens", sources=[handle("raw")]), handle("below", sources=[broken])]
    definitions = build_definitions(handles)
    steps = [lower(one) for one in (*handles, handle("raw"), broken)]
    texts = [str(dict(spec.metadata)) for spec in definitions.resolve_all_asset_specs()]

    with memory_instance() as elsewhere:
        for found in (elsewhere, instance, instance):
            run = run_job(definitions, found, config=config if found is instance else {})
            texts += [str(entry) for entry in found.all_logs(run.run_id)]

    assert [step.name_with_hash for step in steps if step.name_with_hash in "".join(texts)] == []
    for step in steps:
        assert f"{step.name}/{V}" in "".join(texts)


def test_an_asset_downstream_loads_an_artifact_by_its_definition(
    instance: dg.DagsterInstance,
) -> None:
    loaded = []

    @dg.asset(ins={"raw": dg.AssetIn(input_manager_key="marin_io_manager")})
    def dashboard(raw: Any) -> None:
        loaded.append(raw)

    run_job(build_definitions([handle("raw")]), instance)
    job = dg.define_asset_job("dashboards", selection=["dashboard"], executor_def=marin_executor)
    definitions = dg.Definitions.merge(
        build_definitions([handle("raw")]), dg.Definitions(assets=[dashboard], jobs=[job])
    )

    assert run_job(definitions, instance, job="dashboards").success
    [output] = loaded
    assert output.name_with_hash == f"raw/{V}"
    assert output.path == handle("raw").path()


def test_a_drifted_artifact_is_served_and_shown_as_out_of_date(
    instance: dg.DagsterInstance,
) -> None:
    old, new = handle("raw", size=1), handle("raw", size=2)
    assert run_job(build_definitions([old]), instance).success
    calls.clear()

    known = run_job(build_definitions([new]), instance)

    assert calls == []
    assert known.observed() == ["raw"]
    [event] = known.of_type("ASSET_OBSERVATION")
    message = event.asset_observation_data.asset_observation.metadata["marin/drift"].value
    assert "size: 1 -> 2" in str(message)
    with memory_instance() as elsewhere:
        run = run_job(build_definitions([new]), elsewhere)
        assert calls == []
        found = run.materialized()["raw"]
        assert "size: 1 -> 2" in metadata_of(found)["marin/drift"]
        assert (found.tags or {})["dagster/data_version"] == old.fingerprint()
        assert (found.tags or {})["dagster/code_version"] == f"{V}-{old.fingerprint()}"


def test_what_reads_a_drifted_artifact_knows_what_it_read(instance: dg.DagsterInstance) -> None:
    old = handle("raw", size=1)
    assert run_job(build_definitions([old]), instance).success

    new = handle("raw", size=2)
    run = run_job(build_definitions([handle("tokens", sources=[new])]), instance)

    assert run.success
    tags = run.materialized()["tokens"].tags or {}
    assert tags["dagster/input_data_version/raw"] == old.fingerprint()


def test_a_drifted_artifact_with_an_expectation_is_an_error(instance: dg.DagsterInstance) -> None:
    assert run_job(build_definitions([handle("raw", size=1)]), instance).success
    new = handle("raw", size=2)
    object.__setattr__(new, "expected_fingerprint", new.fingerprint())
    calls.clear()

    run = run_job(build_definitions([new]), instance)

    assert not run.success
    error = run.error("raw")
    assert FingerprintMismatchError.__name__ in error or "expects the fingerprint" in error
    assert "size: 1 -> 2" in error
    assert calls == []
    assert status_of(lower(new)) == "SUCCESS"


def test_nothing_is_built_from_a_pin_that_is_not_what_is_expected(
    instance: dg.DagsterInstance,
) -> None:
    run_job(build_definitions([handle("tokens", size=1)]), instance)
    pin = apply("pinned", make, version=V, out=OUT, size=2, pin=f"tokens/{V}")
    pin = dataclasses.replace(pin, expected_fingerprint=pin.fingerprint())
    calls.clear()

    reader = handle("reader", sources=[pin])
    run = run_job(build_definitions([reader]), instance)

    assert not run.success
    assert FingerprintMismatchError.__name__ in run.error("reader")
    assert calls == []
    assert status_of(reader.lower()) is None
    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run([pin, reader])
    kinds = {type(error) for error in raised.value.exceptions}
    assert kinds == {FingerprintMismatchError}
    assert calls == []


@pytest.mark.parametrize(
    "attrs", [{"fingerprint": "a"}, {"fingerprint": "a", "version": V}], ids=str
)
def test_a_step_with_an_attribute_called_fingerprint_is_built(
    attrs: dict[str, str], instance: dg.DagsterInstance, recorder: Recorder
) -> None:
    step = recorder.step("plain", hash_attrs=attrs)

    first, second = (run_job(build_definitions([step]), instance) for _ in range(2))

    assert first.success
    assert recorder.take() == ["plain"]
    tags = first.materialized()["plain"].tags or {}
    assert tags["dagster/data_version"] == step.hash_id
    assert second.observed() == ["plain"]
    [event] = second.of_type("ASSET_OBSERVATION")
    metadata = event.asset_observation_data.asset_observation.metadata
    assert "marin/drift" not in metadata


def test_a_dev_version_is_built_every_time(instance: dg.DagsterInstance) -> None:
    definitions = build_definitions([handle("raw", version="dev")])

    first, second = run_job(definitions, instance), run_job(definitions, instance)

    assert calls == ["raw", "raw"]
    versions = [
        (run.materialized()["raw"].tags or {})["dagster/data_version"] for run in (first, second)
    ]
    assert versions[0] != versions[1]


def test_adopted_data_is_external_and_registered_by_who_reads_it(
    instance: dg.DagsterInstance, tmp_path: Path, store: Path
) -> None:
    source = tmp_path / "existing"
    source.mkdir()
    adopted = ArtifactStep.adopt("old", V, str(source))
    definitions = build_definitions([handle("tokens", sources=[adopted])])

    node = definitions.resolve_asset_graph().get(dg.AssetKey("old"))
    run = run_job(definitions, instance)

    assert node.is_external
    assert node.metadata["marin/source"] == str(source)
    assert run.success
    assert store.joinpath("old", V, ".artifact.json").exists()
    assert list(source.iterdir()) == []


def test_adopted_data_that_is_missing_fails_its_readers(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    adopted = ArtifactStep.adopt("old", V, str(tmp_path / "nothing"))

    run = run_job(build_definitions([handle("tokens", sources=[adopted])]), instance)

    assert not run.success
    assert "does not exist" in run.error("tokens")
    assert calls == []


def test_what_is_finished_needs_no_adopted_data_any_more(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    adopted = ArtifactStep.adopt("old", V, str(tmp_path / "nothing"))
    reader = handle("tokens", sources=[adopted])
    folder = Path(lower(reader).output_path)
    folder.mkdir(parents=True)
    folder.joinpath(".executor_status").write_text("SUCCESS")

    assert run_job(build_definitions([reader]), instance).success
    assert calls == []


@pytest.mark.parametrize("finished", [True, False])
def test_a_pin_is_external_and_must_be_finished(
    instance: dg.DagsterInstance, tmp_path: Path, finished: bool
) -> None:
    pinned = handle("old", pin=str(tmp_path / "pinned"))
    (tmp_path / "pinned").mkdir()
    (tmp_path / "pinned" / "data.txt").write_text("precious")
    if finished:
        (tmp_path / "pinned" / ".executor_status").write_text("SUCCESS")
    definitions = build_definitions([handle("tokens", sources=[pinned])])

    run = run_job(definitions, instance)

    assert definitions.resolve_asset_graph().get(dg.AssetKey("old")).is_external
    assert run.success is finished
    if not finished:
        assert "which no run builds" in run.error("tokens")
    assert (tmp_path / "pinned" / "data.txt").read_text() == "precious"
