"""Our Definitions beside others: merged, mapped and prefixed, they keep what is theirs."""

import warnings
from collections.abc import Callable

import dagster as dg
import pytest

from helpers.runs import JOB, Recorder, run_job
from marin_dagster import StepSpec, build_definitions, build_marin_assets


def _fill(output_path: str) -> None:
    pass


def _executors(definitions: dg.Definitions) -> dict[str, str]:
    repository = definitions.get_repository_def()
    return {job.name: job.executor_def.name for job in repository.get_all_jobs()}


def _others() -> dg.Definitions:
    @dg.asset
    def dashboard() -> None:
        pass

    return dg.Definitions(
        assets=[dashboard],
        jobs=[dg.define_asset_job("dashboards", selection="dashboard")],
        executor=dg.in_process_executor,
    )


@pytest.mark.parametrize("ours_first", [True, False])
def test_merged_with_definitions_that_have_an_executor_our_job_keeps_ours(
    ours_first: bool,
) -> None:
    both = [build_definitions([StepSpec("raw", fn=_fill)]), _others()]

    merged = dg.Definitions.merge(*(both if ours_first else reversed(both)))

    dg.Definitions.validate_loadable(merged)
    assert _executors(merged) == {
        JOB: "marin",
        "dashboards": "in_process",
        "__ASSET_JOB": "in_process",
    }


def test_a_merged_job_prunes_and_serves_as_before(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    end = recorder.step("end", recorder.step("raw"))
    merged = dg.Definitions.merge(_others(), build_definitions([end]))

    first, second = (run_job(merged, instance) for _ in range(2))

    assert first.success
    assert recorder.calls == ["raw", "end"]
    assert second.observed() == ["end", "raw"]


def test_two_of_ours_merge_and_each_job_keeps_its_own_concurrency() -> None:
    one = build_definitions([StepSpec("one", fn=_fill)], job_name="one_job", max_concurrent=2)
    two = build_definitions([StepSpec("two", fn=_fill)], job_name="two_job")

    merged = dg.Definitions.merge(one, two, _others())

    dg.Definitions.validate_loadable(merged)
    defaults = {
        name: dg.validate_run_config(merged.resolve_job_def(name), {})["execution"]["marin"][
            "max_concurrent"
        ]
        for name in ("one_job", "two_job")
    }
    assert defaults == {"one_job": 2, "two_job": 8}
    assert _executors(merged)["__ASSET_JOB"] == "in_process"


def test_two_of_ours_merge_without_any_others() -> None:
    one = build_definitions([StepSpec("one", fn=_fill)], job_name="one_job")
    two = build_definitions([StepSpec("two", fn=_fill)], job_name="two_job")

    merged = dg.Definitions.merge(one, two)

    dg.Definitions.validate_loadable(merged)
    executors = _executors(merged)
    assert (executors["one_job"], executors["two_job"]) == ("marin", "marin")


def _map_specs(
    definitions: dg.Definitions, change: Callable[[dg.AssetSpec], dg.AssetSpec]
) -> dg.Definitions:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a preview of Dagster
        return definitions.map_asset_specs(func=change)


def test_map_asset_specs_keeps_the_executor_and_the_cache(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    end = recorder.step("end", recorder.step("raw"), StepSpec("dump"))
    definitions = _map_specs(
        build_definitions([end]), lambda spec: spec.replace_attributes(owners=["team:nlp"])
    )

    graph = definitions.resolve_asset_graph()
    assert {node.key.to_user_string() for node in graph.asset_nodes} == {"dump", "end", "raw"}
    assert all(node.owners == ["team:nlp"] for node in graph.asset_nodes)
    assert _executors(definitions) == {"__ASSET_JOB": "marin", JOB: "marin"}
    assert run_job(definitions, instance, select=["raw"]).success
    assert run_job(definitions, instance, select=["raw"]).observed() == ["raw"]
    assert recorder.calls == ["raw"]


def test_keys_prefixed_after_the_fact_are_run_and_served_under_the_new_key(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    end = recorder.step("end", raw)
    assets = [
        asset.with_attributes(
            asset_key_replacements={
                key: key.with_prefix("nlp") for key in map(dg.AssetKey, ("raw", "end"))
            }
        )
        for asset in build_marin_assets([end])
        if isinstance(asset, dg.AssetsDefinition)
    ]
    ours = build_definitions([end])
    job = dg.define_asset_job(
        "prefixed",
        selection=dg.AssetSelection.all(),
        executor_def=ours.resolve_job_def(JOB).executor_def,
    )
    definitions = dg.Definitions(assets=assets, resources=ours.resources, jobs=[job])

    first, second = (run_job(definitions, instance, job="prefixed") for _ in range(2))

    assert set(first.materialized()) == {"nlp/raw", "nlp/end"}
    assert (first.materialized()["nlp/end"].tags or {})[
        "dagster/input_data_version/nlp/raw"
    ] == raw.hash_id
    assert second.success
    assert recorder.calls == ["raw", "end"]
    assert second.materialized() == {}
    assert second.observed() == ["nlp/end", "nlp/raw"]
