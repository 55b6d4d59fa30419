"""A module with a step, as a pipeline's function may import it."""

from marin_dagster.steps import StepSpec


def _build(output_path: str) -> None:
    """Does nothing."""


in_module = StepSpec("in_module", output_path_prefix="/store", fn=_build)
