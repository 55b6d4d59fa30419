"""``DagsterMarinTranslator``: what its two methods can change, and that they stay consistent."""

from collections.abc import Mapping
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Recorder, run_job
from marin_dagster import (
    DagsterMarinTranslator,
    ResourceConfig,
    StepLike,
    StepSpec,
    build_definitions,
    build_marin_assets,
)
from marin_dagster.errors import CollisionError, GraphError


class Prefixed(DagsterMarinTranslator):
    """Keys below ``research``."""

    def get_asset_key(self, step: StepLike) -> dg.AssetKey:
        return super().get_asset_key(step).with_prefix("research")


class Described(DagsterMarinTranslator):
    """Another look, the same keys."""

    def get_asset_spec(self, step: StepLike) -> dg.AssetSpec:
        return (
            super()
            .get_asset_spec(step)
            .replace_attributes(owners=["team:nlp"], group_name="ours", description="Ours.")
            .merge_attributes(metadata={"cost": 3}, kinds={"parquet"})
        )


def _fill(output_path: str) -> None:
    pass


def _specs(steps: list[StepSpec], translator: Any) -> dict[str, dg.AssetSpec]:
    found = {}
    for asset in build_marin_assets(steps, translator=translator):
        (spec,) = asset.specs if isinstance(asset, dg.AssetsDefinition) else [asset]
        found[spec.key.to_user_string()] = spec
    return found


def test_an_overridden_key_is_used_for_dependencies_and_external_steps_too() -> None:
    external = StepSpec("raw/dump")
    clean = StepSpec("clean", deps=[external], fn=_fill)
    specs = _specs([StepSpec("train", deps=[clean], fn=_fill)], Prefixed())

    assert set(specs) == {"research/raw/dump", "research/clean", "research/train"}
    deps = {
        key: [dep.asset_key.to_user_string() for dep in spec.deps] for key, spec in specs.items()
    }
    assert deps["research/train"] == ["research/clean"]
    assert deps["research/clean"] == ["research/raw/dump"]


def test_a_graph_with_overridden_keys_runs_and_is_served(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    end = recorder.step("end", recorder.step("raw"))
    definitions = build_definitions([end], translator=Prefixed())

    first, second = (run_job(definitions, instance) for _ in range(2))

    assert recorder.calls == ["raw", "end"]
    assert set(first.materialized()) == {"research/raw", "research/end"}
    assert second.observed() == ["research/end", "research/raw"]


def test_everything_but_the_key_can_be_changed_in_the_spec() -> None:
    step = StepSpec("lm/train", fn=_fill)

    spec = _specs([step], Described())["lm/train"]

    assert spec.owners == ["team:nlp"]
    assert spec.group_name == "ours"
    assert spec.description == "Ours."
    assert spec.kinds == {"marin", "parquet"}
    assert spec.metadata["cost"] == 3
    assert spec.metadata["marin/hash_id"] == step.hash_id
    assert spec.code_version == step.hash_id


def test_a_key_changed_only_in_the_spec_is_an_error_that_says_where_to_change_it() -> None:
    class Inconsistent(DagsterMarinTranslator):
        def get_asset_spec(self, step: StepLike) -> dg.AssetSpec:
            spec = super().get_asset_spec(step)
            return spec.replace_attributes(key=spec.key.with_prefix("research"))

    with pytest.raises(GraphError, match=r"'train'.*research/train.*get_asset_key"):
        build_marin_assets([StepSpec("train", fn=_fill)], translator=Inconsistent())


def test_keys_that_a_translator_makes_equal_are_an_error_naming_both() -> None:
    class Flat(DagsterMarinTranslator):
        def get_asset_key(self, step: StepLike) -> dg.AssetKey:
            return dg.AssetKey(step.name.rpartition("/")[2])

    steps = [StepSpec("train/books", fn=_fill), StepSpec("val/books", fn=_fill)]

    with pytest.raises(CollisionError, match=r"'train/books'.*'val/books'"):
        build_marin_assets(steps, translator=Flat())


def test_dependencies_added_by_the_translator_are_kept_beside_the_steps_own() -> None:
    class Ordered(DagsterMarinTranslator):
        def get_asset_spec(self, step: StepLike) -> dg.AssetSpec:
            spec = super().get_asset_spec(step)
            return spec.replace_attributes(deps=[*spec.deps, dg.AssetDep("licence")])

    raw = StepSpec("raw", fn=_fill)
    specs = _specs([StepSpec("end", deps=[raw], fn=_fill)], Ordered())

    assert {dep.asset_key.to_user_string() for dep in specs["end"].deps} == {"raw", "licence"}
    assert {dep.asset_key.to_user_string() for dep in specs["raw"].deps} == {"licence"}


def test_the_translator_decides_op_tags_and_the_pool() -> None:
    class Budgeted(DagsterMarinTranslator):
        def get_op_tags(self, step: StepLike) -> Mapping[str, Any]:
            return {**super().get_op_tags(step), "dagster/priority": "3"}

        def get_pool(self, step: StepLike) -> str | None:
            return "gpus" if "marin/device" in self.get_op_tags(step) else None

    train = StepSpec("train", fn=_fill, resources=ResourceConfig.with_gpu("H100"))
    plain = StepSpec("plain", fn=_fill)

    ops = {
        asset.key.to_user_string(): asset.op
        for asset in build_marin_assets([train, plain], translator=Budgeted())
        if isinstance(asset, dg.AssetsDefinition)
    }

    assert ops["train"].tags["dagster/priority"] == "3"
    assert ops["train"].tags["marin/device"] == "gpu"
    assert (ops["train"].pool, ops["plain"].pool) == ("gpus", None)
