"""``apply``: a handle whose build is one call of a function. The names are Marin's."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from marin_dagster.errors import InputsError
from marin_dagster.lazy.artifact import Artifact
from marin_dagster.lazy.build_context import resolve_version
from marin_dagster.lazy.handles import ArtifactStep
from marin_dagster.lazy.step_context import StepContext
from marin_dagster.steps.remote import is_remote
from marin_dagster.steps.text import shown

A = TypeVar("A", bound=Artifact)


class _Out:
    def __repr__(self) -> str:
        return "OUT"

    def __reduce__(self) -> str:
        # The same object on the other side of a pickle.
        return "OUT"


OUT = _Out()
"""An input of :func:`apply` that stands for the step's output path."""


def apply(
    name: str,
    fn: Callable[..., Any],
    *,
    version: str | None = None,
    artifact_type: type[A] = Artifact,  # type: ignore[assignment]
    pin: str | None = None,
    **inputs: Any,
) -> ArtifactStep[A]:
    """A handle that is built by calling ``fn(**inputs)``.

    Handles among the inputs, also in lists, tuples and dictionaries, become dependencies, and
    ``fn`` gets their paths. :data:`OUT` becomes the output path. All other inputs are part of the
    identity.

    Args:
        name: first part of the address.
        fn: the function; for a ``RemoteCallable``, its resources apply.
        version: second part of the address; if None, that of the :func:`build_context`.
        artifact_type: the type to load the artifact as.
        pin: the path of finished data.
        inputs: keyword arguments for ``fn``.

    Raises:
        InputsError: ``fn`` does not accept these inputs.
        VersionError: there is no version here or in the context.
    """
    version = resolve_version(name, version)
    try:
        plain: Any = fn
        inspect.signature(plain.fn if is_remote(fn) else fn).bind(**inputs)
    except TypeError as error:
        called = getattr(fn, "__name__", None) or shown(fn)
        raise InputsError(
            f"artifact {name!r}: {called} does not accept its inputs: {error}"
        ) from error

    def build_config(context: StepContext) -> dict[str, Any]:
        return {key: _resolved(value, context) for key, value in inputs.items()}

    return ArtifactStep(
        name=name,
        version=version,
        artifact_type=artifact_type,
        run=_with_keywords(fn),
        build_config=build_config,
        deps=tuple(_handles_in(list(inputs.values()), {}).values()),
        override_path=pin,
    )


def _with_keywords(fn: Any) -> Callable[[Any], Any]:
    if is_remote(fn):
        wrapper: Callable[[Any], Any] = replace(fn, fn=_with_keywords(fn.fn))
        return wrapper

    def run(config: dict[str, Any]) -> Any:
        return fn(**config)

    # Not functools.wraps: a callable object lacks the attributes that it copies.
    run.__wrapped__ = fn  # type: ignore[attr-defined]
    return run


def _handles_in(value: Any, found: dict[int, ArtifactStep[Any]]) -> dict[int, ArtifactStep[Any]]:
    """Every handle in nested containers, once each, in order of appearance."""
    if isinstance(value, ArtifactStep):
        found.setdefault(id(value), value)
    elif callable(getattr(value, "lower", None)) and hasattr(value, "artifact_type"):
        raise InputsError(
            f"{shown(value)} is a handle of another library. Create all handles of a graph with "
            "one library."
        )
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            _handles_in(part, found)
    return found


def _resolved(value: Any, context: StepContext) -> Any:
    if isinstance(value, ArtifactStep):
        return context.artifact_path(value)
    if value is OUT:
        return context.output_path
    if isinstance(value, dict):
        return {key: _resolved(part, context) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_resolved(part, context) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value
