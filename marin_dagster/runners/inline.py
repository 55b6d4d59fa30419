"""Running a step's function in the calling thread."""

from typing import Any

from marin_dagster.cache import Provenance, built_as, launch_provenance
from marin_dagster.errors import StepWithoutFunctionError
from marin_dagster.steps.protocol import StepLike, address
from marin_dagster.steps.remote import step_function


def run_inline(step: StepLike, provenance: Provenance | None = None) -> Any:
    """Call the step's function with its output path and return what it returns.

    A :class:`RemoteCallable`, ours or Marin's, is unwrapped, so nothing is dispatched.

    Args:
        step: the step.
        provenance: for records that the function writes itself; this process's if None.

    Raises:
        StepWithoutFunctionError: the step has no function.
    """
    function = step_function(step)
    if function is None:
        raise StepWithoutFunctionError(f"step {address(step)} has no function")
    with built_as(provenance or launch_provenance()):
        return function(step.output_path)
