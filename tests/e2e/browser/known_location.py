"""A code location with a chain of three quick steps."""

from marin_dagster import StepSpec, build_definitions


def build(output_path: str) -> None:
    """Writes nothing; the record is enough."""


first = StepSpec("first", fn=build)
second = StepSpec("second", deps=[first], fn=build)
defs = build_definitions([StepSpec("third", deps=[second], fn=build)])
