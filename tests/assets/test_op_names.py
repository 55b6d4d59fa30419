"""Step keys: readable, one for each asset key of a graph, and the same in whatever order."""

import re
from collections.abc import Sequence

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.runs import Recorder
from marin_dagster import DagsterMarinTranslator, build_definitions, build_marin_assets
from marin_dagster.assets.op_names import op_names
from marin_dagster.steps import StepLike

PLAIN = {
    "tokens": "tokens",
    "data/raw_text": "data__raw_text",
    "llama-3.1-8b": "llama_3_1_8b",
    "raw/numinamath-1.5": "raw__numinamath_1_5",
    "train-lr=0.1": "train_lr_0_1",
    "x__y": "x__y",
    "a_dash_b": "a_dash_b",
    "class": "class__",
    "config": "config__",
    "a--_b": "a_dash__dash__b",
}
"""Asset keys, and the names of their ops in a graph where no other key looks alike."""

SPELLED_OUT = {
    "models/ngram-4": "models__ngram_dash_4",
    "raw/numinamath-1.5": "raw__numinamath_dash_1_dot_5",
    "train-lr=0.1": "train_dash_lr_u3d_0_dot_1",
    "x__y": "x_under__under_y",
    "x/y": "x__y",
    "a/b__c": "a_slash_b_under__under_c",
    "a_dash_b": "a_under_dash_under_b",
    "a_/b": "a_under__slash_b",
}
"""Asset keys, and the names of their ops beside a key that looks alike."""


def _key(text: str) -> dg.AssetKey:
    return dg.AssetKey(text.split("/"))


def _alike(text: str) -> dg.AssetKey:
    """Another key with the same plain name."""
    plain = re.sub("[^A-Za-z0-9/]", "_", text).replace("/", "__")
    return next(key for key in map(_key, (plain, text.replace("__", "/"))) if key != _key(text))


@pytest.mark.parametrize("key", PLAIN)
def test_the_name_reads_like_the_key(key: str) -> None:
    assert op_names([_key(key)]) == {_key(key): PLAIN[key]}


@pytest.mark.parametrize("key", SPELLED_OUT)
def test_beside_a_key_that_looks_alike_the_name_spells_the_key(key: str) -> None:
    other = _key("a-b") if key == "a_dash_b" else _alike(key)

    assert op_names([_key("raw-text"), other, _key(key)])[_key(key)] == SPELLED_OUT[key]


def test_only_keys_that_look_alike_are_spelled_out() -> None:
    names = op_names(map(_key, ["llama-3.1-8b", "a-b", "a.b"]))

    assert list(names.values()) == ["llama_3_1_8b", "a_dash_b", "a_dot_b"]


@pytest.mark.parametrize("name", ["a-b", "a.b", "lr-0.1", "x__y", "1e-05", "class"])
@pytest.mark.parametrize("others", [[], ["a_b", "lr_0_1", "x/y", "1e_05"]], ids=["alone", "beside"])
def test_no_name_ends_like_a_hash(name: str, others: Sequence[str]) -> None:
    key = _key(name)

    assert not re.search(r"_[0-9a-f]{8}$", op_names([key, *map(_key, others)])[key])


parts = st.text(alphabet="ab_-.=é", min_size=1, max_size=4) | st.sampled_from(
    [
        "dash",
        "_dash_",
        "under",
        "slash",
        "_slash",
        "u2d",
        "_u2d_",
        "class",
        "a-b",
        "a_b",
        "a_dash_b",
    ]
)
graphs = st.lists(st.lists(parts, min_size=1, max_size=3).map(dg.AssetKey), max_size=8, unique=True)


@given(keys=graphs, data=st.data())
def test_two_keys_of_a_graph_never_share_a_name_and_each_is_valid(
    keys: list[dg.AssetKey], data: st.DataObject
) -> None:
    names = op_names(keys)

    assert set(names) == set(keys)
    assert len(set(names.values())) == len(keys)
    assert op_names(data.draw(st.permutations(keys))) == names
    for name in names.values():
        dg.OpDefinition(lambda context, inputs: None, name=name)
        # Three begin the name of a check's op.
        assert "___" not in name


NAMES_ALIKE = ["a-b", "a_b", "a.b", "x/y", "x__y", "a_dash_b", "x_slash_y"]


def test_a_graph_of_names_that_look_alike_loads(recorder: Recorder) -> None:
    steps = [recorder.step(name) for name in NAMES_ALIKE]

    assets = build_marin_assets(steps)

    names = [asset.op.name for asset in assets if isinstance(asset, dg.AssetsDefinition)]
    assert len(set(names)) == len(NAMES_ALIKE)
    dg.Definitions.validate_loadable(build_definitions(steps))


class _OtherKeys(DagsterMarinTranslator):
    def get_asset_key(self, step: StepLike) -> dg.AssetKey:
        return dg.AssetKey(["other", step.name])


PLAIN_ALIKE = [("a-b", "a_b"), ("a.b", "a-b"), ("x/y", "x__y")]


@pytest.mark.parametrize(("one", "other"), PLAIN_ALIKE)
def test_graphs_whose_keys_look_alike_merge_with_other_keys_from_a_translator(
    one: str, other: str, recorder: Recorder
) -> None:
    first = build_definitions([recorder.step(one)])
    clashing, renamed = (
        build_definitions([recorder.step(other)], job_name="other", translator=translator)
        for translator in (None, _OtherKeys())
    )

    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"[Cc]onflicting"):
        dg.Definitions.validate_loadable(dg.Definitions.merge(first, clashing))
    dg.Definitions.validate_loadable(dg.Definitions.merge(first, renamed))


@pytest.mark.parametrize(
    ("one", "other"), [("a-b", "a_dash_b"), ("a.b", "x/y"), ("x__y", "x_slash_y")]
)
def test_graphs_with_other_plain_names_merge(one: str, other: str, recorder: Recorder) -> None:
    merged = dg.Definitions.merge(
        build_definitions([recorder.step(one)]),
        build_definitions([recorder.step(other)], job_name="other"),
    )

    dg.Definitions.validate_loadable(merged)
