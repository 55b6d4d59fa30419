"""Step keys: readable, one for each asset key, and the same in whatever graph it is."""

import re
from itertools import pairwise

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.runs import Recorder
from marin_dagster import StepSpec, build_definitions, build_marin_assets
from marin_dagster.assets.op_names import op_name

NAMES = {
    "tokens": "tokens",
    "data/raw_text": "data__raw_text",
    "models/ngram-4": "models__ngram_dash_4",
    "raw/numinamath-1.5": "raw__numinamath_dash_1_dot_5",
    "train-lr=0.1": "train_dash_lr_u3d_0_dot_1",
    "x__y": "x_under__under_y",
    "a/b__c": "a_slash_b_under__under_c",
    "a_dash_b": "a_under_dash_under_b",
    "a_/b": "a_under__slash_b",
    "class": "class__",
    "config": "config__",
}
"""Asset keys, and the names of their ops."""


def _key(text: str) -> dg.AssetKey:
    return dg.AssetKey(text.split("/"))


@pytest.mark.parametrize("key", NAMES)
def test_the_name_spells_the_key(key: str) -> None:
    assert op_name(_key(key)) == NAMES[key]


@pytest.mark.parametrize("name", ["a-b", "a.b", "lr-0.1", "x__y", "1e-05", "class"])
def test_no_name_ends_like_a_hash(name: str) -> None:
    assert not re.search(r"_[0-9a-f]{8}$", op_name(_key(name)))


parts = st.text(alphabet="ab_-.=é", min_size=1, max_size=4) | st.sampled_from(
    ["dash", "_dash_", "under", "slash", "_slash", "u2d", "_u2d_", "class"]
)
paths = st.lists(parts, min_size=1, max_size=3)


@given(one=paths, other=paths)
def test_two_keys_never_share_a_name_and_each_is_valid(one: list[str], other: list[str]) -> None:
    names = [op_name(dg.AssetKey(path)) for path in (one, other)]

    assert (names[0] == names[1]) == (one == other)
    for name in names:
        dg.OpDefinition(lambda context, inputs: None, name=name)
        assert "___" not in name


NAMES_ALIKE = ["a-b", "a_b", "a.b", "x/y", "x__y", "a_dash_b", "x_slash_y"]
ALIKE = list(pairwise(NAMES_ALIKE))


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_a_step_key_does_not_depend_on_the_graph(one: str, other: str, recorder: Recorder) -> None:
    def names(*steps: StepSpec) -> list[str]:
        assets = build_marin_assets(steps)
        return [asset.op.name for asset in assets if isinstance(asset, dg.AssetsDefinition)]

    first, second = recorder.step(one), recorder.step(other)

    assert names(first, second) == names(first) + names(second)


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_graphs_whose_names_look_alike_merge(one: str, other: str, recorder: Recorder) -> None:
    merged = dg.Definitions.merge(
        build_definitions([recorder.step(one)]),
        build_definitions([recorder.step(other)], job_name="other"),
    )

    dg.Definitions.validate_loadable(merged)
