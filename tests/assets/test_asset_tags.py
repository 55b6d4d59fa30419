"""Attributes as asset tags, so that a selection finds a sweep's point, and as metadata."""

from typing import Any

import dagster as dg
import pytest

from marin_dagster import MarinDagsterWarning, StepSpec, build_definitions, build_marin_assets
from marin_dagster.lazy import OUT, ArtifactStep, apply


def _fill(output_path: str) -> None:
    pass


def _train(out: str, **settings: Any) -> None:
    pass


def _spec(step: Any) -> dg.AssetSpec:
    (asset,) = build_marin_assets([step])
    [spec] = [asset] if isinstance(asset, dg.AssetSpec) else asset.specs
    return spec


def _tags(**attributes: Any) -> dict[str, str]:
    spec = _spec(StepSpec("train", hash_attrs=attributes, fn=_fill))
    return {key: value for key, value in spec.tags.items() if not key.startswith("dagster/")}


VALUES = {
    "number": (0.1, "0.1"),
    "small": (1e-05, "1e-05"),
    "negative": (-3, "-3"),
    "whole": (2**70, str(2**70)),
    "true": (True, "true"),
    "text": ("cosine-v1.2", "cosine-v1.2"),
    "longest": ("x" * 63, "x" * 63),
    "too long": ("x" * 64, None),
    "large": (1e30, None),  # 1e+30
    "blank": ("a b", None),
    "accent": ("é", None),
    "line": ("abc\n", None),
    "path": ("gs://bucket/raw", None),
    "empty": ("", None),
    "none": (None, None),
    "list": ([1, 2], None),
}


@pytest.mark.parametrize(("value", "tag"), VALUES.values(), ids=VALUES)
def test_a_scalar_is_a_tag_as_it_is_or_not_at_all(value: Any, tag: str | None) -> None:
    assert _tags(lr=value) == ({} if tag is None else {"lr": tag})


@pytest.mark.parametrize(
    ("key", "tag"),
    [
        ("a.b-c_D", "a.b-c_D"),
        ("team/lr", "team/lr"),
        ("x" * 63, "x" * 63),
        ("x" * 64, None),
        ("a b", None),
        ("lr\n", None),
        ("", None),
        ("a/b/c", None),
        ("dagster/kind/gold", None),
        ("dagster/x", None),
    ],
)
def test_a_key_is_one_that_dagster_takes_or_no_tag(key: str, tag: str | None) -> None:
    assert _tags(**{key: 1}) == ({} if tag is None else {tag: "1"})


def test_nested_attributes_have_paths_and_two_of_one_path_are_no_tag() -> None:
    assert _tags(model={"layers": 2, "act": "gelu"}) == {"model.layers": "2", "model.act": "gelu"}
    assert _tags(a={"b": 1}, **{"a.b": 2, "c": 3}) == {"c": "3"}


def test_of_many_attributes_the_first_32_that_fit_are_tags() -> None:
    many = {f"long{index}": "x" * 64 for index in range(5)} | {f"a{n}": n for n in range(40)}

    assert _tags(**many) == {f"a{n}": str(n) for n in range(32)}


def test_kinds_stay_beside_tags() -> None:
    spec = _spec(StepSpec("train", hash_attrs={"lr": 0.1}, fn=_fill))

    assert spec.kinds == {"marin"}


@pytest.mark.parametrize("text", ["tag:lr=0.1", 'tag:"lr"="0.1"', 'tag:"opt.name"="adam"'])
def test_a_selection_finds_a_point_of_a_sweep(text: str) -> None:
    points = [
        StepSpec(f"train-{lr}", hash_attrs={"lr": lr, "opt": {"name": name}}, fn=_fill)
        for lr, name in ((0.1, "adam"), (0.2, "sgd"))
    ]
    graph = build_definitions(points).resolve_asset_graph()

    found = dg.AssetSelection.from_string(text).resolve(graph)

    assert {key.to_user_string() for key in found} == {"train-0.1"}


def _attributes(step: Any) -> Any:
    return _spec(step).metadata["marin/attributes"].value


def test_attributes_are_metadata_and_a_lazy_artifacts_are_its_configuration() -> None:
    lazy = apply("train", _train, version="2026.07.01", out=OUT, lr=0.1, sizes=[1, 2])
    adopted = ArtifactStep.adopt("raw", "2026.07.01", "/elsewhere", config={"source": "web"})
    plain = StepSpec("t", hash_attrs={"lr": float("inf"), "sizes": (1, 2)}, fn=_fill)

    assert _attributes(plain) == {"lr": "Infinity", "sizes": [1, 2]}
    assert _attributes(lazy) == {"lr": 0.1, "sizes": [1, 2], "out": "<output_path>"}
    assert _spec(lazy).tags["lr"] == "0.1"
    assert "out" not in _spec(lazy).tags
    assert _attributes(adopted) == {"source": "web"}


def _first_lines(*steps: Any) -> list[str]:
    with pytest.warns(MarinDagsterWarning, match=f"{len(steps)} steps of this graph are called"):
        assets = build_marin_assets(steps)
    specs = [
        spec for asset in assets if isinstance(asset, dg.AssetsDefinition) for spec in asset.specs
    ]
    return [
        (spec.description or "").split("\n")[0] for spec in specs if "train" in spec.key.path[-1]
    ]


def _sweep(*attributes: dict[str, Any]) -> list[StepSpec]:
    return [StepSpec("lm/train", hash_attrs=own, fn=_fill) for own in attributes]


def test_steps_of_one_name_show_what_tells_them_apart() -> None:
    same = {"data": "books"}
    both = _sweep({**same, "lr": 0.1, "m": {"n": 1}}, {**same, "lr": 0.2, "m": {"n": 1}})
    assert _first_lines(*both) == ["`lr=0.1`", "`lr=0.2`"]
    nested = _sweep({"m": {"n": [1]}}, {"m": {"n": [2]}, "tick": "`"}, {"m": {"n": [1]}, "x": 1})
    assert _first_lines(*nested) == [
        "`m.n=[1], no tick, no x`",
        "`m.n=[2], tick=', no x`",
        "`m.n=[1], no tick, x=1`",
    ]


def test_steps_of_one_name_and_the_same_attributes_show_what_they_read() -> None:
    one, other, shared = (StepSpec(name, fn=_fill) for name in ("one", "other", "shared"))
    steps = [StepSpec("train", deps=[dep, shared], fn=_fill) for dep in (one, other)]

    assert _first_lines(*steps) == [
        f"`reads {one.name_with_hash}`",
        f"`reads {other.name_with_hash}`",
    ]


@pytest.mark.parametrize(
    ("attributes", "labels"),
    [
        ([{"lr": 0.1}, {"lr": 0.2}], ["train_lr-0.1", "train_lr-0.2"]),
        ([{"m": {"é": "a b"}}, {"m": {"é": "/"}}], ["train_m.e-a_b", "train_m.e-_"]),
        ([{"x": 1}, {}], ["train_x-1", "train_no_x"]),
        ([{"n": "x" * 30 + end} for end in "ab"], ["train_n-" + "x" * 22] * 2),
    ],
)
def test_the_label_in_the_lineage_tells_steps_of_one_name_apart(
    attributes: list[dict[str, Any]], labels: list[str]
) -> None:
    steps = _sweep(*attributes)
    with pytest.warns(MarinDagsterWarning):
        keys = [asset.key.path[-1] for asset in build_marin_assets(steps)]

    assert keys == [f"{label}_{step.hash_id}" for label, step in zip(labels, steps, strict=True)]


def test_the_docstring_follows_what_tells_steps_apart() -> None:
    def train(output_path: str) -> None:
        """Trains it."""

    steps = [StepSpec("train", hash_attrs={"lr": lr}, fn=train) for lr in (0.1, 0.2)]
    with pytest.warns(MarinDagsterWarning):
        assets = build_marin_assets(steps)

    described = [
        dict(asset.descriptions_by_key)
        for asset in assets
        if isinstance(asset, dg.AssetsDefinition)
    ]
    assert [text for found in described for text in found.values()] == [
        "`lr=0.1`\n\nTrains it.",
        "`lr=0.2`\n\nTrains it.",
    ]


def test_versions_of_one_artifact_have_the_version_in_key_and_description() -> None:
    handles = [apply("train", _train, version=v, out=OUT) for v in ("2026.07.01", "2026.07.02")]

    assert _first_lines(*handles) == ["`version=2026.07.01`", "`version=2026.07.02`"]
    with pytest.warns(MarinDagsterWarning):
        keys = [asset.key.to_user_string() for asset in build_marin_assets(handles)]
    assert keys == ["train_2026.07.01", "train_2026.07.02"]


def test_a_step_whose_name_is_its_own_has_no_such_line() -> None:
    assert _spec(StepSpec("train", hash_attrs={"lr": 1}, fn=_fill)).description is None
