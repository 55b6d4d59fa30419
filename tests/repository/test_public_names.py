"""The public names are exactly these; adding or removing one is a decision, not an accident."""

import ast
import inspect

import pytest

import marin_dagster
from marin_dagster import errors

PUBLIC = [
    "Artifact",
    "ArtifactRecord",
    "ArtifactStep",
    "BuildContext",
    "DagsterMarinTranslator",
    "MarinDagsterError",
    "MarinDagsterWarning",
    "MarinGraph",
    "MarinIOManager",
    "OUT",
    "RemoteCallable",
    "ResourceConfig",
    "StepCache",
    "StepContext",
    "StepGraph",
    "StepLike",
    "StepOutput",
    "StepRunner",
    "StepSpec",
    "StepsFailedError",
    "VersionCodex",
    "apply",
    "build_context",
    "build_definitions",
    "build_marin_assets",
    "build_marin_cache_sensor",
    "build_marin_checks",
    "build_marin_executor",
    "build_marin_schedule",
    "lower",
    "marin_executor",
    "materialized_config",
    "read_artifact",
    "remote",
    "resolve",
    "run",
    "write_artifact",
]


def test_the_public_names_are_these() -> None:
    assert marin_dagster.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(marin_dagster))


def test_type_checkers_see_the_public_names_where_they_are_at_run_time() -> None:
    tree = ast.parse(inspect.getsource(marin_dagster))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    # Only a name that is imported as itself is exported.
    assert sorted(imported, key=str) == PUBLIC
    assert imported == {
        name: f"marin_dagster.{module}.{name}" for name, module in marin_dagster._HOMES.items()
    }


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(marin_dagster, name)
    assert name in ("marin_executor", "OUT") or inspect.getdoc(value)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        marin_dagster.no_such_name  # noqa: B018


def test_the_drawing_of_the_errors_is_the_hierarchy() -> None:
    drawing = errors.__doc__ or ""
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.MarinDagsterError)
    ]
    for error in classes:
        line = next(line for line in drawing.splitlines() if error.__name__ in line.split())
        ancestry = [base for base in error.__mro__ if issubclass(base, errors.MarinDagsterError)]
        # The drawing is indented by one step of four columns.
        assert line.index(error.__name__) == 4 * len(ancestry)
        builtin = {base.__name__ for base in error.__bases__ if base.__module__ == "builtins"}
        assert all(f"({name})" in line for name in builtin - {"Exception"})
