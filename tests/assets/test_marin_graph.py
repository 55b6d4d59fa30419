"""``MarinGraph``: one value that all builders take instead of steps."""

from typing import Any

import dagster as dg
import pytest

from helpers.runs import Recorder
from marin_dagster import (
    DagsterMarinTranslator,
    StepGraph,
    build_definitions,
    build_marin_assets,
    build_marin_cache_sensor,
    build_marin_checks,
    build_marin_schedule,
)
from marin_dagster.assets.marin_graph import MarinGraph
from marin_dagster.steps import StepLike


class _Counting(DagsterMarinTranslator):
    def __init__(self) -> None:
        self.specs = 0

    def get_asset_key(self, step: StepLike) -> dg.AssetKey:
        return super().get_asset_key(step).with_prefix("ours")

    def get_asset_spec(self, step: StepLike) -> dg.AssetSpec:
        self.specs += 1
        return super().get_asset_spec(step)


def test_every_builder_takes_one_and_the_specs_are_made_once(recorder: Recorder) -> None:
    translator = _Counting()
    marin = MarinGraph.of(
        [recorder.step("end", recorder.step("raw"))], translator=translator, io_manager_key="theirs"
    )

    assets = build_marin_assets(marin)
    checks = build_marin_checks(marin)
    sensor = build_marin_cache_sensor(marin)
    schedule = build_marin_schedule(marin, "@daily")
    definitions = build_definitions(marin, schedule="@daily", cache_sensor=True)

    keys = {dg.AssetKey(["ours", "raw"]), dg.AssetKey(["ours", "end"])}
    assert {asset.key for asset in assets} == keys
    assert {key.asset_key for check in checks for key in check.check_keys} == keys
    assert sensor.required_resource_keys == schedule.required_resource_keys == {"theirs"}
    dg.Definitions.validate_loadable(definitions)
    assert translator.specs == 2


def test_it_stays_itself_with_its_own_settings(recorder: Recorder) -> None:
    translator = DagsterMarinTranslator()
    marin = MarinGraph.of([recorder.step("raw")], translator=translator, group_name="ours")

    assert MarinGraph.of(marin, translator=translator, group_name="ours") is marin
    assert isinstance(marin.graph, StepGraph)


@pytest.mark.parametrize(
    "other",
    [{"translator": DagsterMarinTranslator()}, {"io_manager_key": "other"}, {"group_name": "g"}],
    ids=lambda other: next(iter(other)),
)
def test_other_settings_than_its_own_are_an_error(
    other: dict[str, Any], recorder: Recorder
) -> None:
    marin = MarinGraph.of([recorder.step("raw")])

    with pytest.raises(ValueError, match=r"give them to MarinGraph\.of"):
        build_marin_assets(marin, **other)
