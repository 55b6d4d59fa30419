"""Asset specs: dependencies, group, kinds, versions, metadata and op tags, from the step alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Recorder, memory_instance, run_job
from marin_dagster import (
    DagsterMarinTranslator,
    MarinIOManager,
    ResourceConfig,
    StepSpec,
    build_definitions,
    build_marin_assets,
    remote,
)


def _fill(output_path: str) -> None:
    pass


def _definition(step: StepSpec) -> dg.AssetsDefinition:
    """The asset of ``step``, from a graph of it."""
    for asset in build_marin_assets([step]):
        if asset.key.path == step.name.split("/"):
            assert isinstance(asset, dg.AssetsDefinition)
            return asset
    raise AssertionError(f"no asset for {step.name}")


def _spec(step: StepSpec) -> dg.AssetSpec:
    (spec,) = _definition(step).specs
    return spec


def _values(step: StepSpec) -> dict[str, Any]:
    return {key: getattr(value, "value", value) for key, value in _spec(step).metadata.items()}


def test_dependencies_are_those_of_the_step_each_once() -> None:
    above = [StepSpec(name, fn=_fill) for name in ("raw/a", "raw/b")]
    step = StepSpec("end", deps=[*above, above[0]], fn=_fill)

    keys = [dep.asset_key.to_user_string() for dep in _spec(step).deps]

    assert sorted(keys) == ["raw/a", "raw/b"]


def test_transitive_steps_become_assets_without_being_listed() -> None:
    raw = StepSpec("raw", fn=_fill)
    end = StepSpec("end", deps=[StepSpec("middle", deps=[raw], fn=_fill)], fn=_fill)

    keys = [asset.key.to_user_string() for asset in build_marin_assets([end])]

    assert keys == ["raw", "middle", "end"]


class Opinionated(DagsterMarinTranslator):
    def get_asset_spec(self, step: Any) -> dg.AssetSpec:
        spec = super().get_asset_spec(step)
        return spec.replace_attributes(group_name="mine") if step.name == "raw/books" else spec


def _groups(definitions: dg.Definitions) -> dict[str, str]:
    nodes = definitions.resolve_asset_graph().asset_nodes
    return {node.key.to_user_string(): node.group_name for node in nodes}


NAMES = ["raw/books", "raw/web", "a-b/c/d", "é.x/c", "alone"]


def _filled_up(count: int) -> list[StepSpec]:
    names = [*NAMES, *(f"more/{index}" for index in range(count - len(NAMES)))]
    return [StepSpec(name, fn=None if name == "raw/web" else _fill) for name in names]


@pytest.mark.parametrize("count", [len(NAMES), 40])
def test_a_graph_is_one_group(count: int) -> None:
    assert set(_groups(build_definitions(_filled_up(count), checks=False)).values()) == {"default"}


def test_a_graph_of_dozens_of_steps_has_groups_by_the_first_part_of_names_with_several() -> None:
    groups = _groups(build_definitions(_filled_up(41), checks=False))

    keys = ("raw/books", "raw/web", "a-b/c/d", "e.x/c", "alone")
    assert [groups[key] for key in keys] == ["raw", "raw", "a_b", "e_x", "default"]


@pytest.mark.parametrize("count", [len(NAMES), 41])
def test_the_group_can_be_given_and_the_translators_stays(count: int) -> None:
    steps, translator = _filled_up(count), Opinionated()
    assets = build_marin_assets(steps, translator=translator, group_name="lm")
    resources = {"marin_io_manager": MarinIOManager()}

    for definitions in (
        build_definitions(steps, translator=translator, group_name="lm", checks=False),
        dg.Definitions(assets, resources=resources),
    ):
        groups = _groups(definitions)
        assert groups.pop("raw/books") == "mine"
        assert set(groups.values()) == {"lm"}


def test_dagsters_own_ways_to_set_a_group_work() -> None:
    steps = _filled_up(len(NAMES))
    module = ModuleType("steps_module")
    module.__dict__["assets"] = build_marin_assets(steps)
    resources = {"marin_io_manager": MarinIOManager()}

    for definitions in (
        build_definitions(steps, checks=False).map_asset_specs(
            func=lambda spec: spec.replace_attributes(group_name="theirs")
        ),
        dg.Definitions(
            dg.load_assets_from_modules([module], group_name="theirs", include_specs=True),
            resources=resources,
        ),
    ):
        assert set(_groups(definitions).values()) == {"theirs"}


@pytest.mark.parametrize(
    ("resources", "kinds"),
    [
        (None, {"marin"}),
        (ResourceConfig.with_cpu(), {"marin", "cpu"}),
        (ResourceConfig.with_gpu("H100", 8), {"marin", "gpu"}),
        (ResourceConfig.with_tpu("v5p-64"), {"marin", "tpu"}),
    ],
)
def test_kinds_are_marin_and_the_device(resources: ResourceConfig | None, kinds: set[str]) -> None:
    assert _spec(StepSpec("train", fn=_fill, resources=resources)).kinds == kinds


def test_op_tags_carry_the_resources_of_the_step_or_else_of_its_remote_function() -> None:
    own = ResourceConfig.with_gpu("H100", 8, ram="64g")
    wrapped = remote(resources=ResourceConfig.with_tpu("v5p-8"))(_fill)

    tags = _definition(StepSpec("train", fn=wrapped, resources=own)).op.tags
    others = _definition(StepSpec("train", fn=wrapped)).op.tags

    assert tags["marin/device"] == "gpu"
    assert json.loads(tags["marin/resources"])["ram"] == "64g"
    assert json.loads(tags["marin/resources"])["device"] == {
        "kind": "gpu",
        "variant": "H100",
        "count": 8,
    }
    assert others["marin/device"] == "tpu"
    assert _definition(StepSpec("plain", fn=_fill)).op.tags == {}


def test_metadata_states_path_identity_attributes_and_resources(store: Path) -> None:
    step = StepSpec(
        "lm/train",
        hash_attrs={"lr": 0.1, "layers": (1, 2)},
        fn=_fill,
        resources=ResourceConfig.with_gpu("H100"),
    )

    metadata = _values(step)

    assert metadata["dagster/uri"] == f"{store}/lm/train_{step.hash_id}"
    assert metadata["marin/hash_id"] == step.hash_id
    assert metadata["marin/own_hash"] == StepSpec(step.name, hash_attrs=step.hash_attrs).hash_id
    assert metadata["marin/name_with_hash"] == f"lm/train_{step.hash_id}"
    assert metadata["marin/attributes"] == {"lr": 0.1, "layers": [1, 2]}
    assert metadata["marin/resources"]["device"]["variant"] == "H100"
    assert "marin/resources" not in _values(StepSpec("plain", fn=_fill))


def test_the_hash_is_the_code_version_and_the_data_version(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    end = recorder.step("end", raw, hash_attrs={"size": 1})
    definitions = build_definitions([end])

    made = run_job(definitions, instance).materialized()

    graph = definitions.resolve_asset_graph()
    for step in (raw, end):
        assert graph.get(dg.AssetKey(step.name)).code_version == step.hash_id
        assert (made[step.name].tags or {})["dagster/code_version"] == step.hash_id
        assert (made[step.name].tags or {})["dagster/data_version"] == step.hash_id
    assert (made["end"].tags or {})["dagster/input_data_version/raw"] == raw.hash_id


def test_the_input_version_is_known_even_of_a_dependency_this_instance_never_saw(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("data/raw")
    end = recorder.step("end", raw)
    definitions = build_definitions([end])
    with memory_instance() as elsewhere:
        run_job(definitions, elsewhere, select=["data/raw"])

    made = run_job(definitions, instance, select=["end"]).materialized()

    assert (made["end"].tags or {})["dagster/input_data_version/data/raw"] == raw.hash_id


def _chain(prefix: str | None) -> list[StepSpec]:
    raw = StepSpec("raw", output_path_prefix=prefix, fn=_fill)
    clean = StepSpec("clean", output_path_prefix=prefix, deps=[raw], fn=_fill)
    return [StepSpec("lm/train", output_path_prefix=prefix, deps=[clean], fn=_fill)]


def _identity(steps: Sequence[StepSpec]) -> list[tuple[Any, ...]]:
    found = []
    for asset in build_marin_assets(steps):
        assert isinstance(asset, dg.AssetsDefinition)
        (spec,) = asset.specs
        deps = [dep.asset_key for dep in spec.deps]
        found.append((spec.key, spec.code_version, deps, asset.op.name, spec.group_name))
    return found


def _paths(steps: Sequence[StepSpec]) -> list[str]:
    return [
        asset.metadata_by_key[asset.key]["dagster/uri"]
        for asset in build_marin_assets(steps)
        if isinstance(asset, dg.AssetsDefinition)
    ]


def test_two_values_of_marin_prefix_differ_only_in_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_PREFIX", "/disk/one")
    one = _chain(None)
    one_identity, one_paths = _identity(one), _paths(one)
    monkeypatch.setenv("MARIN_PREFIX", "s3://bucket/two")
    two = _chain(None)

    assert _identity(two) == one_identity
    assert all(path.startswith("/disk/one/") for path in one_paths)
    assert _paths(two) == [path.replace("/disk/one/", "s3://bucket/two/", 1) for path in one_paths]


def test_two_values_of_the_steps_own_prefix_differ_only_in_paths() -> None:
    one, two = _chain("/disk/one"), _chain("gs://bucket/two")

    assert _identity(one) == _identity(two)
    assert _paths(one) == [
        path.replace("gs://bucket/two/", "/disk/one/", 1) for path in _paths(two)
    ]
