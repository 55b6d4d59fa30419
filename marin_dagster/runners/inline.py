"""Running a step's function in the calling thread."""

from typing import Any

from marin_dagster.errors import StepWithoutFunctionError
from marin_dagster.steps.protocol import StepLike, address
from marin_dagster.steps.remote import step_function


def run_inline(step: StepLike) -> Any:
    """Call the step's function with its output path and return what it returns.

    A :class:`RemoteCallable`, ours or Marin's, is unwrapped, so nothing is dispatched.
    """
    function = step_function(step)
    if function is None:
        raise StepWithoutFunctionError(f"step {address(step)} has no function")
    return function(step.output_path)
