"""Marin's StepSpec, RemoteCallable and Fray's ResourceConfig work in Dagster as they are."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from fray.current_client import current_client, set_current_client
from fray.local_backend import LocalClient
from fray.types import ResourceConfig as FrayResources
from marin.execution.artifact import read_record
from marin.execution.artifact import write_artifact as marin_write_artifact
from marin.execution.remote import RemoteCallable as MarinRemote
from marin.execution.remote import remote as marin_remote
from marin.execution.step_spec import StepSpec as MarinStep
from marin_peer import Calls, marin_status, small_graph, write_file
from pydantic import BaseModel

from helpers.runs import Run, metadata_of, run_job
from marin_dagster import (
    RemoteCallable,
    ResourceConfig,
    StepLike,
    StepSpec,
    build_definitions,
    build_marin_assets,
    remote,
)
from marin_dagster.steps import StepGraph

pytestmark = pytest.mark.interop


class NoClient(LocalClient):
    """A Fray client to which nothing may be submitted."""

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a job was submitted to Fray")


def marin_chain(length: int, fn: Callable[[str], Any] | None = None) -> list[MarinStep]:
    steps: list[MarinStep] = []
    for index in range(length):
        steps.append(MarinStep(f"step-{index}", deps=steps[-1:], fn=fn))
    return steps


def test_marins_steps_have_every_property_that_the_protocol_asks_for() -> None:
    step = MarinStep("a", deps=[MarinStep("b")])
    wanted = [name for name, value in inspect.getmembers(StepLike) if isinstance(value, property)]
    assert len(wanted) >= 13
    for name in wanted:
        assert getattr(step, name) == getattr(StepSpec("a", deps=step.deps), name) or name == "deps"


def test_a_graph_of_marins_steps_runs_and_is_cached(
    instance: dg.DagsterInstance, calls: Calls, store: Path
) -> None:
    steps = small_graph(MarinStep, calls, str(store))
    definitions = build_definitions(steps)
    first = run_job(definitions, instance)
    assert first.success
    assert calls.take() == ["alone", "flaky", "raw/tokenize", "report", "train", "vocab"]
    assert {marin_status(step.output_path) for step in steps} == {"SUCCESS"}
    assert metadata_of(first.materialized()["vocab"])["nested.loss"] == 0.25

    second = run_job(definitions, instance)
    assert second.success
    assert calls.take() == []
    assert second.observed() == sorted(step.name for step in steps)


def test_a_graph_of_both_classes_runs_in_one_job(
    instance: dg.DagsterInstance, calls: Calls
) -> None:
    a = MarinStep("a", fn=calls.function("a"))
    b = StepSpec("b", deps=[a], fn=calls.function("b"))
    c = MarinStep("c", deps=[b, a], fn=calls.function("c"))  # type: ignore[list-item]
    d = StepSpec("d", deps=[c, b], fn=calls.function("d"))
    assert run_job(build_definitions([d]), instance).success
    assert calls.names == ["a", "b", "c", "d"]
    record = read_record(d.output_path)
    assert record is not None
    assert record.deps == [c.name_with_hash, b.name_with_hash]
    assert record.dep_paths == [c.output_path, b.output_path]


def test_a_failing_step_of_marins_fails_the_run_and_nothing_beside_it(
    instance: dg.DagsterInstance, calls: Calls, store: Path
) -> None:
    calls.broken.add("flaky")
    steps = {step.name: step for step in small_graph(MarinStep, calls, str(store))}
    run = run_job(build_definitions(list(steps.values())), instance)
    assert not run.success
    assert run.steps("STEP_FAILURE") == ["flaky"]
    assert "flaky fails on purpose" in run.error("flaky")
    statuses = {name: marin_status(step.output_path) for name, step in steps.items()}
    assert statuses == dict.fromkeys(steps, "SUCCESS") | {"flaky": "FAILED", "report": None}
    assert not Path(steps["report"].output_path).exists()


def test_the_assets_of_marins_steps_are_those_of_ours(calls: Calls, store: Path) -> None:
    functions: dict[str, Any] = {}

    def steps(make: Callable[..., Any]) -> list[Any]:
        found = small_graph(make, calls, str(store))
        for step in found:
            # One function for both, as it shows in the assets.
            object.__setattr__(step, "fn", functions.setdefault(step.name, step.fn))
        return found

    marins, ours = build_marin_assets(steps(MarinStep)), build_marin_assets(steps(StepSpec))
    for marin, our in zip(marins, ours, strict=True):
        assert isinstance(marin, dg.AssetsDefinition)
        assert isinstance(our, dg.AssetsDefinition)
        assert list(marin.specs) == list(our.specs)
        assert marin.op.name == our.op.name
        assert marin.op.tags == our.op.tags


DEVICES: dict[str, Callable[[Any], Any]] = {
    "cpu": lambda kind: kind.with_cpu(cpu=4, ram="16g", regions=("us-east1", "us-west1")),
    "gpu": lambda kind: kind.with_gpu("H100", count=8, preemptible=False),
    "tpu": lambda kind: kind.with_tpu(["v5p-8", "v4-8"], slice_count=2, zone="us-east5-a"),
}


@pytest.mark.parametrize("wrapped", [False, True], ids=["resources", "remote"])
@pytest.mark.parametrize("device", DEVICES)
def test_requests_of_fray_show_as_ours_do_and_the_function_can_run_inline(
    device: str, wrapped: bool, instance: dg.DagsterInstance
) -> None:
    seen: list[str] = []

    def train(output_path: str) -> dict[str, int]:
        """Train a model."""
        seen.append(output_path)
        return {"steps": 7}

    frays, ours = DEVICES[device](FrayResources), DEVICES[device](ResourceConfig)
    if wrapped:
        marin = MarinStep("train", fn=marin_remote(train, resources=frays, env_vars={"A": "1"}))
        own = StepSpec("train", fn=remote(resources=ours, env_vars={"A": "1"})(train))
        assert isinstance(marin.fn, MarinRemote)
        assert isinstance(own.fn, RemoteCallable)
    else:
        marin = MarinStep("train", fn=train, resources=frays)
        own = StepSpec("train", fn=train, resources=ours)

    (asset,), (expected,) = build_marin_assets([marin]), build_marin_assets([own])
    assert isinstance(asset, dg.AssetsDefinition)
    assert isinstance(expected, dg.AssetsDefinition)
    (spec,) = asset.specs
    assert spec == next(iter(expected.specs))
    assert spec.kinds == {"marin", device}
    assert spec.description == "Train a model."
    assert spec.metadata["marin/resources"].value["device"]["kind"] == device
    assert asset.op.tags == expected.op.tags
    assert asset.op.tags["marin/device"] == device

    config = {"default_with_resources": "inline"}
    with set_current_client(NoClient()):
        run = run_job(build_definitions([marin]), instance, config=config)
    assert run.success
    assert seen == [marin.output_path]
    assert metadata_of(run.materialized()["train"])["steps"] == 7
    record = read_record(marin.output_path)
    assert record is not None
    assert record.result == {"steps": 7}


def test_the_steps_own_request_comes_before_that_of_marins_remote_callable() -> None:
    function = marin_remote(lambda path: None, resources=FrayResources.with_cpu(cpu=2))
    step = MarinStep("train", fn=function, resources=FrayResources.with_gpu("H100"))
    (asset,) = build_marin_assets([step])
    assert isinstance(asset, dg.AssetsDefinition)
    assert asset.op.tags["marin/device"] == "gpu"
    assert next(iter(asset.specs)).kinds == {"marin", "gpu"}


def test_a_bare_remote_of_marins_shows_its_default_request() -> None:
    step = MarinStep("train", fn=marin_remote(lambda path: None))
    twin = StepSpec("train", fn=remote(lambda path: None))
    (asset,), (expected,) = build_marin_assets([step]), build_marin_assets([twin])
    assert isinstance(asset, dg.AssetsDefinition)
    assert isinstance(expected, dg.AssetsDefinition)
    assert asset.op.tags == expected.op.tags


def test_the_callers_fray_client_reaches_the_functions_thread(
    instance: dg.DagsterInstance,
) -> None:
    found: list[Any] = []
    step = MarinStep("a", fn=lambda path: found.append(current_client()))
    client = NoClient()
    with set_current_client(client):
        assert run_job(build_definitions([step]), instance).success
    assert found == [client]


class Vocabulary(BaseModel):
    size: int


def test_a_record_that_marins_function_writes_itself_is_kept(
    instance: dg.DagsterInstance,
) -> None:
    def build(output_path: str) -> None:
        marin_write_artifact(Vocabulary(size=9), output_path)

    step = MarinStep("vocab", fn=build, writes_record=True)
    run = run_job(build_definitions([step]), instance)
    assert run.success
    assert metadata_of(run.materialized()["vocab"])["size"] == 9
    record = read_record(step.output_path)
    assert record is not None
    assert (record.name, record.result) == ("", {"size": 9})


def test_an_ordinary_asset_loads_the_output_of_a_step_of_marins(
    instance: dg.DagsterInstance,
) -> None:
    step = MarinStep("vocab", fn=lambda path: Vocabulary(size=9))
    loaded: list[Vocabulary] = []

    @dg.asset(ins={"vocab": dg.AssetIn(input_manager_key="marin_io_manager")})
    def table(vocab: Vocabulary) -> None:
        loaded.append(vocab)

    everything = dg.define_asset_job(
        "everything",
        selection=dg.AssetSelection.assets("vocab", "table"),
        executor_def=dg.in_process_executor,
    )
    merged = dg.Definitions.merge(
        build_definitions([step]), dg.Definitions(assets=[table], jobs=[everything])
    )
    assert run_job(merged, instance, job="everything").success
    assert loaded == [Vocabulary(size=9)]


def test_a_step_of_marins_without_a_function_is_an_external_asset(
    instance: dg.DagsterInstance, calls: Calls
) -> None:
    data = MarinStep("data")
    step = MarinStep("train", deps=[data], fn=calls.function("train"))
    spec, _ = build_marin_assets([step])
    assert isinstance(spec, dg.AssetSpec)
    definitions = build_definitions([step])
    assert "data" in run_job(definitions, instance).error("train")
    write_file(data.output_path, ".executor_status", "SUCCESS")
    assert run_job(definitions, instance).success
    assert calls.take() == ["train"]


@pytest.fixture
def no_recursion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marin's generated methods walk the whole graph; using one is an error."""
    for method in ("__repr__", "__eq__", "__hash__"):

        def refuse(self: Any, *others: Any, method: str = method) -> Any:
            raise AssertionError(f"StepSpec.{method} of Marin's class was used")

        monkeypatch.setattr(MarinStep, method, refuse)


@pytest.mark.usefixtures("no_recursion")
def test_nothing_prints_compares_or_hashes_marins_steps(
    instance: dg.DagsterInstance, calls: Calls, store: Path
) -> None:
    calls.broken.add("flaky")
    definitions = build_definitions(small_graph(MarinStep, calls, str(store)))
    assert not run_job(definitions, instance).success
    calls.broken.clear()
    assert run_job(definitions, instance).success
    assert run_job(definitions, instance, config={"force": ["train"]}).success
    assert run_job(definitions, instance, config={"dry_run": True}).success


def test_3000_of_marins_steps_in_a_chain_become_definitions() -> None:
    length = 3000
    steps = marin_chain(length, fn=lambda path: None)
    definitions = build_definitions([steps[-1]])
    graph = definitions.resolve_asset_graph()
    assert len(graph.get_all_asset_keys()) == length
    last = graph.get(dg.AssetKey(f"step-{length - 1}"))
    assert last.parent_keys == {dg.AssetKey(f"step-{length - 2}")}


@pytest.mark.usefixtures("no_recursion")
def test_of_a_deep_chain_of_marins_steps_only_the_missing_end_runs(
    instance: dg.DagsterInstance, calls: Calls
) -> None:
    steps = marin_chain(400, fn=calls.function("inner"))
    # Dependencies first, as a graph does: Marin's own recursion would not survive the last one.
    for step in StepGraph.from_steps([steps[-1]]).steps.values():
        write_file(step.output_path, ".executor_status", "SUCCESS")
    end = MarinStep("end", deps=[steps[-1]], fn=calls.function("end"))
    run = run_job(build_definitions([end]), instance, select=["step-398", "step-399", "end"])
    assert run.success
    assert calls.take() == ["end"]
    record = read_record(end.output_path)
    assert record is not None
    assert record.deps == [steps[-1].name_with_hash]


def test_a_run_of_marins_steps_has_the_events_of_a_run_of_ours(
    calls: Calls, tmp_path: Path
) -> None:
    def events(make: Callable[..., Any]) -> list[str]:
        with dg.DagsterInstance.ephemeral() as instance:
            prefix = str(tmp_path / make.__module__)
            run: Run = run_job(build_definitions(small_graph(make, calls, prefix)), instance)
        return sorted(f"{event.event_type_value} {event.step_key}" for event in run.events)

    assert events(MarinStep) == events(StepSpec)
