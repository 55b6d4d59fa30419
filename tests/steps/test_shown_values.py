"""Errors show values whose ``repr`` raises or is huge, and functions that wrap themselves."""

from collections.abc import Callable
from typing import Any

import pytest

from marin_dagster import StepGraph, StepSpec, apply
from marin_dagster.errors import GraphError, HashAttributeError, InputsError, ResultError
from marin_dagster.steps.remote import written_function


class Odd:
    """A value with a ``repr`` that errors must survive."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __repr__(self) -> str:
        if self.text is None:
            raise RuntimeError("no repr")
        return self.text


def attributes(value: Any) -> None:
    StepGraph.from_steps([StepSpec("step", hash_attrs={"at": value})])


def attribute_key(value: Any) -> None:
    StepGraph.from_steps([StepSpec("step", hash_attrs={"at": {value: 1}})])


def function(value: Any) -> None:
    StepGraph.from_steps([StepSpec("step", fn=value)])


def terminals(value: Any) -> None:
    StepGraph.from_steps(value)


def dependency(value: Any) -> None:
    StepGraph.from_steps([StepSpec("step", deps=[value])])


def result(value: Any) -> None:
    from marin_dagster.cache.record import result_payload

    result_payload(StepSpec("step"), value)


def part_of_result(value: Any) -> None:
    result({"at": value})


class OddFunction(Odd):
    """Has no name, either."""

    def __call__(self) -> None: ...


def inputs(value: Any) -> None:
    apply("artifact", OddFunction(value.text), version="2026.07.01", size=1)


@pytest.mark.parametrize("text", [None, "x" * 1_000_000], ids=["raises", "huge"])
@pytest.mark.parametrize(
    ("use", "error"),
    [
        (attributes, HashAttributeError),
        (attribute_key, HashAttributeError),
        (function, GraphError),
        (terminals, GraphError),
        (dependency, GraphError),
        (result, ResultError),
        (part_of_result, ResultError),
        (inputs, InputsError),
    ],
)
def test_an_error_shows_any_value(
    use: Callable[[Any], None], error: type[Exception], text: str | None
) -> None:
    with pytest.raises(error) as raised:
        use(Odd(text))

    assert "Odd" in str(raised.value) or "xxx" in str(raised.value)
    assert len(str(raised.value)) < 1000


def test_a_function_that_wraps_itself_is_found() -> None:
    def wrapped(output_path: str) -> None:
        """Wraps itself."""

    def wrapper(output_path: str) -> None: ...

    wrapper.__wrapped__ = wrapped  # type: ignore[attr-defined]
    wrapped.__wrapped__ = wrapper  # type: ignore[attr-defined]

    assert written_function(StepSpec("step", fn=wrapper)) == (wrapped, "Wraps itself.")
