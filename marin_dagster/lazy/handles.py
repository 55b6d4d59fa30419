"""``ArtifactStep``: a handle to an artifact that is addressed by name and version, not by a hash.

A handle says how the artifact is built: ``run(build_config(context))``. What ``build_config``
writes down itself bears identity; what it takes from the :class:`StepContext` (paths, the prefix,
runtime arguments) does not. The identity of the recipe is its *fingerprint*, which is recorded and
compared, and never part of the address. The model and all names are Marin's.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from marin_dagster.errors import CollisionError, InputsError
from marin_dagster.lazy.artifact import Artifact
from marin_dagster.lazy.build_context import resolve_version
from marin_dagster.lazy.step_context import StepContext
from marin_dagster.steps.fingerprint import canonical_json, fingerprint_hash
from marin_dagster.steps.paths import is_relative, join, output_prefix
from marin_dagster.steps.protocol import Handle, StepLike
from marin_dagster.steps.remote import is_remote
from marin_dagster.steps.versions import check_name, check_version

A = TypeVar("A", bound=Artifact)


class _Out:
    def __repr__(self) -> str:
        return "OUT"

    def __reduce__(self) -> str:
        # The same object on the other side of a pickle.
        return "OUT"


OUT = _Out()
"""Among the inputs of :func:`apply`: the step's output path."""


@dataclass(frozen=True, eq=False)
class ArtifactStep(Handle, Generic[A]):
    """A handle to one version of an artifact, and how to build it. Making one runs nothing.

    Handles compare by object, so they can be keys.

    Raises:
        StepNameError: the name cannot be part of an address.
        VersionError: no version.
        CollisionError: both adopted and pinned.
    """

    name: str
    """First part of the address; ``/`` makes folders."""
    version: str
    """Second part of the address: ``YYYY.MM.DD[.N]``, or ``dev`` or ``<label>-dev``, which is
    built every time."""
    artifact_type: type[A]
    """What the artifact is loaded as."""
    run: Callable[[Any], Any]
    """Builds it from its configuration; returns the artifact, or None when its files are all."""
    build_config: Callable[[StepContext], Any]
    """Makes the configuration; called for the fingerprint, too, with stand-ins."""
    deps: Sequence["ArtifactStep[Any]"] = ()
    """The artifacts that ``build_config`` asks for."""
    runtime_args: Mapping[str, Any] = field(default_factory=dict)
    """Values for ``StepContext.runtime_arg``; they bear no identity."""
    override_path: str | None = None
    """A pin: where finished data already lies. It gets no record."""
    adopt_source: str | None = None
    """Where adopted data lies; see :meth:`adopt`."""
    adopt_config: dict[str, Any] | None = None
    """What the record of adopted data keeps as its configuration."""
    expected_fingerprint: str | None = None
    """An error when the recipe, or the one that was built, has another fingerprint."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_version(self.version)
        if self.adopt_source is not None and self.override_path is not None:
            raise CollisionError(
                f"{self.identity} is both adopted (from {self.adopt_source}) and pinned (to "
                f"{self.override_path}). Leave one out."
            )
        object.__setattr__(self, "deps", tuple(self.deps))

    @classmethod
    def adopt(
        cls,
        name: str,
        version: str,
        source: str,
        *,
        kind: type[Any] = Artifact,
        config: dict[str, Any] | None = None,
    ) -> "ArtifactStep[Any]":
        """A handle to data that already lies somewhere. It is neither moved nor computed.

        Whoever depends on it gets ``source``; running it writes a record at its address.

        Args:
            name: first part of the address.
            version: second part.
            source: where the data lies; relative to the prefix, absolute, or a URL.
            kind: what it is loaded as.
            config: what the record keeps as its configuration.
        """
        return cls(
            name=name,
            version=version,
            artifact_type=kind,
            run=_nothing_to_run,
            build_config=lambda context: None,
            adopt_source=source,
            adopt_config=config,
        )

    @property
    def identity(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"

    def fingerprint_payload(self) -> str:
        """The canonical JSON that :meth:`fingerprint` hashes.

        Raises:
            HashAttributeError: see :func:`canonical_json`.
        """
        if self.adopt_source is not None:
            adopted = {"adopt_source": self.adopt_source, "config": self.adopt_config}
            return json.dumps(adopted, sort_keys=True)
        context = StepContext.for_fingerprint(self.runtime_args, self.deps)
        return canonical_json(self.build_config(replace(context, _asking=self.identity)))

    def fingerprint(self) -> str:
        """8 hex digits of the recipe; the same under every prefix."""
        return fingerprint_hash(self.fingerprint_payload())

    def path(self, prefix: str | None = None) -> str:
        """Where consumers find the artifact: its source, its pin, or its address."""
        location = self.adopt_source or self.override_path or f"{self.name}/{self.version}"
        return join(output_prefix(prefix), location) if is_relative(location) else location

    def run_context(self, output_path: str, prefix: str) -> StepContext:
        """What a run of this handle builds its configuration from.

        Args:
            output_path: the step's folder.
            prefix: the storage prefix, below which dependencies lie.
        """
        context = StepContext.for_run(
            output_path, prefix, runtime_args=self.runtime_args, deps=self.deps
        )
        return replace(context, _asking=self.identity)

    def lower(self, memo: dict[int, StepLike] | None = None) -> StepLike:
        """The handle and all above it as ``StepSpec``; see :func:`marin_dagster.lazy.lower`."""
        from marin_dagster.lazy.lowering import lower

        return lower(self, memo)


def materialized_config(handle: ArtifactStep[Any], prefix: str) -> Any:
    """The configuration that a run below ``prefix`` would get, to look at or to test. Runs nothing.

    Args:
        handle: the handle.
        prefix: the storage prefix.
    """
    return handle.build_config(handle.run_context(handle.path(prefix), prefix))


def apply(
    name: str,
    fn: Callable[..., Any],
    *,
    version: str | None = None,
    artifact_type: type[A] = Artifact,  # type: ignore[assignment]
    pin: str | None = None,
    **inputs: Any,
) -> ArtifactStep[A]:
    """A handle whose build is ``fn(**inputs)``.

    Handles among the inputs, also inside lists, tuples and dictionaries, become dependencies and
    arrive as their paths; :data:`OUT` arrives as the output path; everything else bears identity.

    Args:
        name: first part of the address.
        fn: the function; a ``RemoteCallable`` runs where it says.
        version: second part of the address; the :func:`build_context` says it when None.
        artifact_type: what the artifact is loaded as.
        pin: where finished data already lies.
        inputs: what ``fn`` is called with.

    Raises:
        InputsError: ``fn`` cannot be called with these inputs.
        VersionError: no version, here or in the context.
    """
    version = resolve_version(name, version)
    try:
        plain: Any = fn
        inspect.signature(plain.fn if is_remote(fn) else fn).bind(**inputs)
    except TypeError as error:
        called = getattr(fn, "__name__", repr(fn))
        raise InputsError(f"artifact {name!r}: {called} cannot take its inputs: {error}") from error

    def build_config(context: StepContext) -> dict[str, Any]:
        return {key: _arriving(value, context) for key, value in inputs.items()}

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

    # Not functools.wraps: the attributes of a callable object are not those of a function.
    run.__wrapped__ = fn  # type: ignore[attr-defined]
    return run


def _handles_in(value: Any, found: dict[int, ArtifactStep[Any]]) -> dict[int, ArtifactStep[Any]]:
    """Every handle in nested containers, once each, in the order in which they are met."""
    if isinstance(value, ArtifactStep):
        found.setdefault(id(value), value)
    elif callable(getattr(value, "lower", None)) and hasattr(value, "artifact_type"):
        raise InputsError(
            f"{value!r:.80} is a handle of another library. Make all handles of one graph with "
            "the same."
        )
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            _handles_in(part, found)
    return found


def _arriving(value: Any, context: StepContext) -> Any:
    if isinstance(value, ArtifactStep):
        return context.artifact_path(value)
    if value is OUT:
        return context.output_path
    if isinstance(value, dict):
        return {key: _arriving(part, context) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_arriving(part, context) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


def _nothing_to_run(config: Any) -> None:
    raise AssertionError("adopted data is not computed")
