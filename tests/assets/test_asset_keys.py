"""Asset keys: what becomes of a step's name, and that selection and asset checks work on it."""

from collections.abc import Callable, Sequence

import dagster as dg
import pytest

from helpers.runs import Recorder, run_job
from marin_dagster import (
    MarinDagsterWarning,
    StepSpec,
    build_definitions,
    build_marin_assets,
    marin_executor,
)
from marin_dagster.errors import CollisionError

AWKWARD = {
    "raw/numinamath-1.5": ["raw", "numinamath-1.5"],
    "a-b": ["a-b"],
    "a_b": ["a_b"],
    "x/y": ["x", "y"],
    "x__y": ["x__y"],
    "é": ["e"],
}
"""Names that troubled others, and the parts of the key that each must get."""


DOTS_CAN_BE_CHECKED = tuple(map(int, dg.__version__.split(".")[:3])) >= (1, 13, 4)
"""Earlier Dagster makes an invalid op name for any asset check on a key with a dot."""

CHECKED = [name for name in AWKWARD if "." not in name or DOTS_CAN_BE_CHECKED]


def _fill(output_path: str) -> None:
    pass


def _steps(*names: str) -> list[StepSpec]:
    return [StepSpec(name, fn=_fill) for name in names]


def _keys(assets: Sequence[dg.AssetsDefinition | dg.AssetSpec]) -> set[str]:
    return {asset.key.to_user_string() for asset in assets}


def test_awkward_names_become_keys_of_their_own_beside_each_other() -> None:
    assets = build_marin_assets(_steps(*AWKWARD))

    assert [asset.key.path for asset in assets] == list(AWKWARD.values())


def test_awkward_names_become_ops_of_their_own() -> None:
    job = build_definitions(_steps(*AWKWARD)).resolve_job_def("materialize_steps")

    assert len({node.name for node in job.nodes}) == len(AWKWARD)


@pytest.mark.parametrize("name", AWKWARD)
def test_string_selection_finds_an_awkward_key_on_the_real_graph(name: str) -> None:
    steps = _steps(*AWKWARD)
    end = StepSpec("end", deps=steps, fn=_fill)
    graph = build_definitions([end]).resolve_asset_graph()
    key = dg.AssetKey(AWKWARD[name])

    def select(text: str) -> set[dg.AssetKey]:
        return set(dg.AssetSelection.from_string(text).resolve(graph))

    assert select(f'key:"{key.to_user_string()}"') == {key}
    assert select(f'key:"{key.to_user_string()}"+') == {key, dg.AssetKey("end")}
    assert key in select('+key:"end"')


@pytest.mark.parametrize("name", CHECKED)
def test_an_asset_check_on_an_awkward_key_runs(
    name: str, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps = [recorder.step(each) for each in AWKWARD]
    key = dg.AssetKey(AWKWARD[name])

    @dg.asset_check(asset=key)
    def is_filled(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=name in recorder.calls)

    definitions = dg.Definitions.merge(
        build_definitions(steps), dg.Definitions(asset_checks=[is_filled])
    )
    run = run_job(definitions, instance, select=[key.to_user_string()], checks=True)

    assert run.success
    assert recorder.calls == [name]
    found = [event.asset_check_evaluation_data for event in run.of_type("ASSET_CHECK_EVALUATION")]
    assert {check.check_name for check in found} == {"is_filled", "cache_integrity"}
    assert {check.asset_key for check in found} == {key}
    assert all(check.passed for check in found)


def test_checks_on_all_awkward_keys_run_in_one_run(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps = [recorder.step(each) for each in AWKWARD]

    def check_on(index: int, key: dg.AssetKey) -> dg.AssetChecksDefinition:
        @dg.asset_check(asset=key, name=f"is_filled_{index}")
        def is_filled() -> dg.AssetCheckResult:
            return dg.AssetCheckResult(passed=True)

        return is_filled

    keys = [dg.AssetKey(AWKWARD[name]) for name in CHECKED]
    job = dg.define_asset_job(
        "everything", selection=dg.AssetSelection.all(), executor_def=marin_executor
    )
    definitions = dg.Definitions.merge(
        build_definitions(steps),
        dg.Definitions(
            asset_checks=[check_on(index, key) for index, key in enumerate(keys)], jobs=[job]
        ),
    )
    run = run_job(definitions, instance, job="everything")

    assert run.success
    checked = {
        event.asset_check_evaluation_data.asset_key
        for event in run.of_type("ASSET_CHECK_EVALUATION")
        if event.asset_check_evaluation_data.check_name != "cache_integrity"
    }
    assert checked == set(keys)


@pytest.mark.parametrize(
    ("first", "second"),
    [("a b", "a_b"), ("é", "e"), ("data/x:y", "data/x_y"), ("数据", "模型")],
)
def test_names_that_collide_as_keys_are_an_error_naming_both(first: str, second: str) -> None:
    with pytest.raises(CollisionError) as caught:
        build_marin_assets(_steps(first, second))

    assert repr(first) in str(caught.value)
    assert repr(second) in str(caught.value)


def test_a_collision_is_an_error_also_through_definitions_and_a_dependency() -> None:
    (above,) = _steps("a b")

    with pytest.raises(CollisionError, match=r"'a b'.*'a_b'"):
        build_definitions([StepSpec("a_b", deps=[above], fn=_fill)])


def test_two_versions_of_one_name_get_their_hash_in_the_key_and_a_warning() -> None:
    small, large = (StepSpec("lm/train", hash_attrs={"size": size}, fn=_fill) for size in (1, 2))
    end = StepSpec("end", deps=[small, large], fn=_fill)

    with pytest.warns(MarinDagsterWarning, match=r"'lm/train'.*hash") as caught:
        assets = build_marin_assets([end])

    keys = {f"lm/train_size-{n}_{step.hash_id}" for n, step in ((1, small), (2, large))}
    assert _keys(assets) == {*keys, "end"}
    assert small.hash_id in str(caught[0].message)
    assert large.hash_id in str(caught[0].message)
    (last,) = (asset for asset in assets if asset.key == dg.AssetKey("end"))
    assert isinstance(last, dg.AssetsDefinition)
    assert {dep.asset_key.to_user_string() for dep in next(iter(last.specs)).deps} == (
        _keys(assets) - {"end"}
    )


@pytest.mark.parametrize("build", [build_marin_assets, build_definitions])
def test_the_warning_of_two_versions_points_to_the_callers_line(
    build: Callable[[list[StepSpec]], object],
) -> None:
    steps = [StepSpec("train", hash_attrs={"size": size}, fn=_fill) for size in (1, 2)]

    with pytest.warns(MarinDagsterWarning) as caught:
        build(steps)

    assert caught[0].filename == __file__


def test_both_versions_of_one_name_run(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    steps = [recorder.step("train", hash_attrs={"size": size}) for size in (1, 2)]
    with pytest.warns(MarinDagsterWarning):
        definitions = build_definitions(steps)

    run = run_job(definitions, instance)

    assert run.success
    assert set(run.materialized()) == {
        f"train_size-{size}_{step.hash_id}" for size, step in zip((1, 2), steps, strict=True)
    }


def test_one_version_of_a_name_has_no_hash_in_its_key_and_no_warning() -> None:
    assert _keys(build_marin_assets(_steps("lm/train"))) == {"lm/train"}
