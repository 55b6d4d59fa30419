"""``StepContext``: the values for ``build_config`` that are not part of an artifact's identity. The
names are Marin's."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from marin_dagster.errors import StepError, UndeclaredDependencyError
from marin_dagster.lazy.artifact import Artifact
from marin_dagster.lazy.cloud_region import find_region

A = TypeVar("A", bound=Artifact)
A_co = TypeVar("A_co", bound=Artifact, covariant=True)


class LazyDependency(Protocol[A_co]):
    """What a context needs of a dependency; ``ArtifactStep`` has it."""

    @property
    def identity(self) -> str:
        """``name@version``."""
        ...

    @property
    def artifact_type(self) -> type[A_co]:
        """The type to load the artifact as."""
        ...

    def path(self, prefix: str | None = None) -> str:
        """Where its data is."""
        ...


@dataclass(frozen=True)
class StepContext:
    """The argument of ``build_config``."""

    output_path: str
    """The step's folder."""
    prefix: str
    """The storage prefix."""
    is_fingerprint: bool
    """Whether the configuration is only fingerprinted: paths are placeholders, and no artifact can
    be loaded."""
    _region: str | None
    _runtime_args: Mapping[str, Any]
    _deps: tuple[LazyDependency[Any], ...]
    _step: str = "the step"
    """The step, for errors."""
    _loaded: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def for_run(
        cls,
        output_path: str,
        prefix: str,
        *,
        region: str | None = None,
        runtime_args: Mapping[str, Any] | None = None,
        deps: Iterable[LazyDependency[Any]] = (),
    ) -> "StepContext":
        """A context for a run; the arguments are Marin's.

        Args:
            output_path: the step's folder.
            prefix: the storage prefix of the dependencies.
            region: the cloud region; if None, detected when :attr:`region` is first read.
            runtime_args: values for :meth:`runtime_arg`.
            deps: the declared dependencies.
        """
        return cls(output_path, prefix, False, region, dict(runtime_args or {}), tuple(deps))

    @classmethod
    def for_fingerprint(
        cls, runtime_arg_keys: Iterable[str] = (), deps: Iterable[LazyDependency[Any]] = ()
    ) -> "StepContext":
        """A context of placeholders, for the fingerprint; arguments and placeholders are Marin's.

        Args:
            runtime_arg_keys: names for :meth:`runtime_arg`.
            deps: the declared dependencies.
        """
        placeholders = {key: f"<{key}>" for key in runtime_arg_keys}
        return cls("<output_path>", "<prefix>", True, "<region>", placeholders, tuple(deps))

    @property
    def region(self) -> str:
        """The region of the Google Cloud instance, else of the prefix.

        Raises:
            StepError: neither has one.
        """
        region = self._region or find_region(self.prefix)
        if region is None:
            raise StepError(
                f"{self._step} ({self.output_path}) reads ctx.region, which is unknown: no "
                f"metadata server of Google Cloud answers, and the prefix {self.prefix} is not in "
                "a bucket gs://marin-<region>. Run it on Google Cloud or with such a prefix, or "
                "take the region from ctx.runtime_arg."
            )
        return region

    def artifact_path(self, dep: LazyDependency[Any]) -> str:
        """A dependency's path; ``name@version`` for the fingerprint.

        Raises:
            UndeclaredDependencyError: the step does not list it in ``deps``.
        """
        self._require_declared(dep)
        return dep.identity if self.is_fingerprint else dep.path(self.prefix)

    def resolved(self, dep: LazyDependency[A]) -> A:
        """A dependency's artifact, loaded once.

        Raises:
            UndeclaredDependencyError: the step does not list it in ``deps``.
            ValueError: called for a fingerprint, when no artifact can be loaded.
            ArtifactTypeMismatchError: the record names another type.
        """
        if self.is_fingerprint:
            raise ValueError(
                f"{self._step}: resolved() cannot load an artifact for the fingerprint. Check "
                "is_fingerprint first, and use a value that identifies the artifact instead."
            )
        self._require_declared(dep)
        if id(dep) not in self._loaded:
            self._loaded[id(dep)] = dep.artifact_type.raw_load(dep.path(self.prefix))
        found: A = self._loaded[id(dep)]
        return found

    def runtime_arg(self, key: str) -> Any:
        """A value of the step's ``runtime_args``; ``<key>`` for the fingerprint.

        Raises:
            KeyError: the step has no such argument.
        """
        if key not in self._runtime_args:
            known = ", ".join(sorted(self._runtime_args)) or "none"
            raise KeyError(f"{self._step} has no runtime argument {key!r}; it has {known}")
        return self._runtime_args[key]

    def _require_declared(self, dep: LazyDependency[Any]) -> None:
        if not any(dep is declared for declared in self._deps):
            raise UndeclaredDependencyError(
                f"{self._step} uses {dep.identity}, which is not in its deps. Add it there, "
                "so that it is built first."
            )
