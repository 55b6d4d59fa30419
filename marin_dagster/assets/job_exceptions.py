"""Carries Dagster's exceptions ``Failure`` and ``RetryRequested`` from a job back to its op.

The job's worker writes one as JSON (:func:`describe`), and the op raises it again
(:func:`restore`), so that retries and metadata work as for a step that runs in a thread.
"""

import logging
from typing import Any

import dagster as dg

from marin_dagster.errors import RemoteFunctionError

logger = logging.getLogger(__name__)

DESCRIBERS = {"dagster": __name__}
"""For :class:`~marin_dagster.runners.DriverCallbacks`."""


def describe(error: BaseException) -> Any:
    """JSON from which :func:`restore` makes the exception; None for any other exception."""
    if isinstance(error, dg.RetryRequested):
        return {
            "retry": {"max_retries": error.max_retries, "seconds_to_wait": error.seconds_to_wait}
        }
    if isinstance(error, dg.Failure):
        shown: dict[str, Any] = dict(error.metadata)
        return {
            "failure": {"description": error.description, "allow_retries": error.allow_retries},
            "metadata": {name: dg.serialize_value(value) for name, value in shown.items()},
        }
    return None


def restore(error: RemoteFunctionError) -> Exception:
    """The ``Failure`` or ``RetryRequested`` that the step's function raised; the error itself when
    it raised anything else."""
    match error.details:
        case {"retry": fields}:
            return dg.RetryRequested(**fields)
        case {"failure": fields, "metadata": metadata}:
            return dg.Failure(**fields, metadata=_readable(metadata))
        case _:
            return error


def _readable(metadata: dict[str, str]) -> dict[str, Any]:
    """The metadata, without values that only the worker's release of Dagster can read."""
    found: dict[str, Any] = {}
    for name, text in metadata.items():
        try:
            found[name] = dg.deserialize_value(text)
        except Exception:
            logger.warning(
                "metadata %r of a failure cannot be read by this release of Dagster",
                name,
                exc_info=True,
            )
    return found
