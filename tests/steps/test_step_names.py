"""Names and paths that cannot be a folder of a store are refused when the graph is built."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.marin_like import MarinLike
from marin_dagster.errors import GraphError, StepNameError
from marin_dagster.steps import StepGraph, StepSpec

REFUSED = [
    "",
    "   ",
    "..",
    "../escape",
    "a/../b",
    "a/..",
    "/absolute",
    "trailing/",
    "doubled//slash",
    ".",
    "a/./b",
    "s3://bucket/x",
    "file:///x",
    "simplecache::s3",
    "zip://a::x",
    "line\nbreak",
    "nul\0byte",
    "escape\x1b[0m",
    "tab\there",
    "next\x85line",
    "lone\ud800surrogate",
    "x" * 300,
    "é" * 150,
    "fine/" + "x" * 300 + "/fine",
]

ACCEPTED = [
    "raw/numinamath-1.5",
    "a-b",
    "a_b",
    "x__y",
    "évaluation",
    "a b-1",
    "v1.2.3",
    "a:b",
    "x" * 246,
    "é" * 123,
    "/".join(["x" * 200] * 3),
]


@pytest.mark.parametrize("make", [StepSpec, MarinLike])
@pytest.mark.parametrize("name", REFUSED, ids=lambda name: ascii(name[:20]))
def test_a_name_that_cannot_be_a_folder_is_refused(
    name: str, make: Callable[..., Any], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    step = make(name, output_path_prefix=str(store))
    with pytest.raises(StepNameError, match="step '") as caught:
        StepGraph.from_steps([make("terminal", output_path_prefix=str(store), deps=[step])])
    assert isinstance(caught.value, GraphError)
    assert len(str(caught.value)) < 1_000
    assert str(caught.value).isprintable()
    assert not store.exists()


@pytest.mark.parametrize("name", ACCEPTED, ids=lambda name: ascii(name[:20]))
def test_an_unusual_name_is_accepted_when_it_can_be_a_folder(name: str, tmp_path: Path) -> None:
    step = StepSpec(name, output_path_prefix=str(tmp_path / "store"))
    [path] = StepGraph.from_steps([step]).steps
    Path(path).mkdir(parents=True)
    assert Path(path).is_dir()


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"override_output_path": "../escape"}, id="relative override climbs"),
        pytest.param({"override_output_path": "/store/../escape"}, id="override climbs"),
        pytest.param({"override_output_path": "s3://b/x/../y"}, id="URL climbs"),
        pytest.param({"output_path_prefix": "/store/../escape"}, id="prefix climbs"),
        pytest.param({"override_output_path": "x" * 256}, id="override too long"),
        pytest.param({"override_output_path": "/a/" + "é" * 150 + "/b"}, id="part too long"),
        pytest.param({"override_output_path": "line\nbreak"}, id="line break"),
        pytest.param({"override_output_path": "nul\0byte"}, id="NUL"),
        pytest.param({"override_output_path": "/lone/\ud800"}, id="lone surrogate"),
        pytest.param({"override_output_path": ""}, id="empty: the prefix itself"),
        pytest.param({"override_output_path": "simplecache::s3://b/x"}, id="chained URL"),
    ],
)
def test_an_output_path_that_cannot_be_a_folder_of_its_own_is_refused(
    fields: dict[str, Any],
) -> None:
    with pytest.raises(StepNameError, match="step 'tokens'"):
        StepGraph.from_steps([StepSpec("tokens", **fields)])


def test_a_long_override_makes_a_long_name_possible() -> None:
    step = StepSpec("x" * 300, override_output_path="/store/short")
    assert list(StepGraph.from_steps([step]).steps) == ["/store/short"]
