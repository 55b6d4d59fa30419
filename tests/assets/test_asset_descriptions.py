"""Descriptions and code references: out of every wrapper, what the author wrote and where."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from marin_dagster import (
    OUT,
    Artifact,
    ArtifactStep,
    DagsterMarinTranslator,
    ResourceConfig,
    StepSpec,
    apply,
    build_marin_assets,
    remote,
)


def tokenize(output_path: str, *, size: int = 1) -> None:
    """Tokenizes the corpus."""


def _wrapping(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        """Not this text."""
        function(*args, **kwargs)

    return wrapper


class Tokenizer:
    """A tokenizer with settings."""

    def __call__(self, output_path: str) -> None:
        """Tokenizes the corpus."""


class QuietTokenizer:
    """Tokenizes the corpus."""

    def __call__(self, output_path: str) -> None:
        pass


class Pipeline:
    """Holds methods that are steps."""

    def tokenize(self, output_path: str) -> None:
        """Tokenizes the corpus."""


_remote = remote(resources=ResourceConfig.with_cpu())

WRITTEN_AS = {
    "function": tokenize,
    "partial": functools.partial(tokenize, size=2),
    "partial of a partial": functools.partial(functools.partial(tokenize, size=2), size=3),
    "remote": _remote(tokenize),
    "remote partial": _remote(functools.partial(tokenize, size=2)),
    "partial of a remote": functools.partial(_remote(tokenize), size=2),
    "wraps": _wrapping(tokenize),
    "partial of a wraps": functools.partial(_wrapping(tokenize), size=2),
    "remote wraps": _remote(_wrapping(tokenize)),
    "callable object": Tokenizer(),
    "bound method": Pipeline().tokenize,
}


def _spec(function: Callable[[str], Any]) -> dg.AssetSpec:
    (asset,) = build_marin_assets([StepSpec("tokens", fn=function)])
    assert isinstance(asset, dg.AssetsDefinition)
    (spec,) = asset.specs
    return spec


def _spec_of(handle: ArtifactStep[Any]) -> dg.AssetSpec:
    return DagsterMarinTranslator().get_asset_spec(handle.lower())


def _reference(spec: dg.AssetSpec) -> dg.LocalFileCodeReference:
    (reference,) = spec.metadata["dagster/code_references"].code_references
    assert isinstance(reference, dg.LocalFileCodeReference)
    return reference


@pytest.mark.parametrize("form", WRITTEN_AS)
def test_the_description_is_the_docstring_of_the_function_that_was_written(form: str) -> None:
    assert _spec(WRITTEN_AS[form]).description == "Tokenizes the corpus."


@pytest.mark.parametrize("form", [form for form in WRITTEN_AS if "object" not in form])
def test_the_code_reference_points_to_the_line_that_was_written(form: str) -> None:
    written = Pipeline.tokenize if form == "bound method" else tokenize

    reference = _reference(_spec(WRITTEN_AS[form]))

    assert reference.file_path == __file__
    assert reference.line_number == inspect.getsourcelines(written)[1]
    assert reference.label == "tokenize"


def test_the_code_reference_of_a_callable_object_points_to_its_call_method() -> None:
    reference = _reference(_spec(Tokenizer()))

    assert reference.file_path == __file__
    assert reference.line_number == inspect.getsourcelines(Tokenizer.__call__)[1]


def test_a_callable_object_whose_call_says_nothing_is_described_by_its_class() -> None:
    assert _spec(QuietTokenizer()).description == "Tokenizes the corpus."


def test_a_lambda_has_a_code_reference_and_no_description() -> None:
    spec = _spec(lambda output_path: None)

    assert spec.description is None
    assert _reference(spec).file_path == __file__


def test_a_function_written_in_c_has_neither_a_code_reference_nor_a_failure() -> None:
    assert "dagster/code_references" not in _spec(print).metadata


def test_a_docstring_of_several_lines_loses_its_indentation() -> None:
    def build(output_path: str) -> None:
        """First line.

        Second paragraph.
        """

    assert _spec(build).description == "First line.\n\nSecond paragraph."


@pytest.mark.parametrize("form", WRITTEN_AS)
def test_a_lazy_artifact_shows_the_function_that_it_applies(form: str) -> None:
    handle = apply("tokens", WRITTEN_AS[form], version="2026.07.01", output_path=OUT)

    spec = _spec_of(handle)

    assert spec.description == "Tokenizes the corpus."
    written = {"bound method": Pipeline.tokenize, "callable object": Tokenizer.__call__}
    reference = _reference(spec)
    assert reference.file_path == __file__
    assert reference.line_number == inspect.getsourcelines(written.get(form, tokenize))[1]


def test_an_artifact_step_shows_what_it_runs_and_adopted_data_shows_nothing() -> None:
    def build(config: Any) -> None:
        """Builds from a configuration."""

    version = "2026.07.01"
    handle = ArtifactStep(
        "tokens", version, artifact_type=Artifact, run=build, build_config=lambda context: {}
    )
    adopted = ArtifactStep.adopt("old", version, "somewhere")

    assert _spec_of(handle).description == "Builds from a configuration."
    assert _reference(_spec_of(handle)).label == "build"
    assert _spec_of(adopted).description is None
    assert "dagster/code_references" not in _spec_of(adopted).metadata
