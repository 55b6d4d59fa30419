"""``build_definitions``: what it takes, what it gives, and that it never looks at the store."""

import dagster as dg
import pytest

from helpers.runs import JOB, Recorder, run_job
from marin_dagster import (
    MarinIOManager,
    ResourceConfig,
    StepSpec,
    build_definitions,
    build_marin_assets,
)
from marin_dagster.errors import CycleError


def _fill(output_path: str) -> None:
    pass


def _chain() -> list[StepSpec]:
    raw = StepSpec("raw/dump")
    clean = StepSpec("clean", deps=[raw], fn=_fill)
    train = StepSpec("lm/train", deps=[clean], fn=_fill, resources=ResourceConfig.with_gpu("H100"))
    return [StepSpec("report", deps=[train, clean], fn=_fill)]


def _parents(definitions: dg.Definitions) -> dict[str, set[str]]:
    return {
        node.key.to_user_string(): {key.to_user_string() for key in node.parent_keys}
        for node in definitions.resolve_asset_graph().asset_nodes
    }


CHAIN_PARENTS = {
    "raw/dump": set(),
    "clean": {"raw/dump"},
    "lm/train": {"clean"},
    "report": {"clean", "lm/train"},
}


def test_a_code_location_loads_completely_while_the_store_is_broken(
    broken_store: list[str],
) -> None:
    definitions = build_definitions(_chain())

    dg.Definitions.validate_loadable(definitions)

    assert _parents(definitions) == CHAIN_PARENTS
    assert (
        definitions.resolve_asset_graph()
        .get(dg.AssetKey("clean"))
        .metadata["dagster/uri"]
        .startswith("broken://bucket/store/clean_")
    )
    assert broken_store == []


def test_the_broken_store_is_noticed_when_a_step_is_looked_up(
    broken_store: list[str], recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    run = run_job(build_definitions([recorder.step("raw")]), instance)

    assert not run.success
    assert recorder.calls == []
    assert broken_store != []


def test_steps_are_a_list_or_a_function_that_returns_one() -> None:
    assert _parents(build_definitions(_chain())) == CHAIN_PARENTS
    assert _parents(build_definitions(_chain)) == CHAIN_PARENTS
    assert _parents(build_definitions(step for step in _chain())) == CHAIN_PARENTS
    assert len(build_marin_assets(_chain)) == len(CHAIN_PARENTS)


def test_a_fault_of_the_graph_is_raised_at_definition_time() -> None:
    deps: list[StepSpec] = []
    first = StepSpec("first", deps=deps, fn=_fill)
    second = StepSpec("second", deps=[first], fn=_fill)
    object.__setattr__(first, "deps", (second,))

    with pytest.raises(CycleError, match=r"first -> second|second -> first"):
        build_definitions([second])


def test_the_one_job_covers_every_step_with_a_function() -> None:
    job = build_definitions(_chain()).resolve_job_def(JOB)

    selected = {key.to_user_string() for key in job.asset_layer.selected_asset_keys}
    assert selected == {"clean", "lm/train", "report"}


def test_the_jobs_name_can_be_chosen() -> None:
    repository = build_definitions(_chain(), job_name="nightly").get_repository_def()

    assert {job.name for job in repository.get_all_jobs()} == {"__ASSET_JOB", "nightly"}


def test_the_only_resource_is_the_io_manager() -> None:
    definitions = build_definitions(_chain())

    assert set(definitions.resources or {}) == {"marin_io_manager"}
    assert isinstance((definitions.resources or {})["marin_io_manager"], MarinIOManager)


def test_our_executor_is_the_default_of_everything_in_the_code_location() -> None:
    repository = build_definitions(_chain(), max_concurrent=3).get_repository_def()

    executors = {job.name: job.executor_def.name for job in repository.get_all_jobs()}
    assert executors == {"__ASSET_JOB": "marin", JOB: "marin"}


def test_the_executor_argument_replaces_ours_everywhere() -> None:
    definitions = build_definitions(_chain(), executor=dg.in_process_executor)

    executors = {
        job.name: job.executor_def for job in definitions.get_repository_def().get_all_jobs()
    }
    assert executors == {"__ASSET_JOB": dg.in_process_executor, JOB: dg.in_process_executor}


@pytest.mark.parametrize(("given", "default"), [(0, 8), (1, 1), (8, 8), (44, 44)])
def test_max_concurrent_is_the_default_in_the_run_config(given: int, default: int) -> None:
    definitions = build_definitions(_chain(), max_concurrent=given)

    config = dg.validate_run_config(definitions.resolve_job_def(JOB), {})

    assert config["execution"]["marin"]["max_concurrent"] == default


def test_a_negative_max_concurrent_is_refused_at_definition_time() -> None:
    with pytest.raises(ValueError, match=r"max_concurrent = -1: must be 1 or more"):
        build_definitions(_chain(), max_concurrent=-1)


def test_a_graph_of_external_steps_only_loads_without_a_job() -> None:
    definitions = build_definitions([StepSpec("raw/dump"), StepSpec("raw/more")])

    dg.Definitions.validate_loadable(definitions)

    assert _parents(definitions) == {"raw/dump": set(), "raw/more": set()}
    assert [job.name for job in definitions.get_repository_def().get_all_jobs()] in (
        [],
        ["__ASSET_JOB"],
    )


def test_an_empty_graph_loads() -> None:
    definitions = build_definitions([])

    dg.Definitions.validate_loadable(definitions)

    assert _parents(definitions) == {}
