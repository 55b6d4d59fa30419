"""``StepContext``: what a handle's configuration is built from. The names are Marin's."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from marin_dagster.errors import StepError, UndeclaredDependencyError
from marin_dagster.lazy.artifact import Artifact
from marin_dagster.lazy.region import find_region

if TYPE_CHECKING:
    from marin_dagster.lazy.handles import ArtifactStep

A = TypeVar("A", bound=Artifact)


@dataclass(frozen=True)
class StepContext:
    """What a configuration is built from, without bearing identity."""

    output_path: str
    """The step's folder."""
    prefix: str
    """The storage prefix."""
    is_fingerprint: bool
    """The configuration is only wanted for its fingerprint: paths are stand-ins, and no artifact
    can be read."""
    _region: str | None
    _runtime_args: Mapping[str, Any]
    _deps: "tuple[ArtifactStep[Any], ...]"
    _asking: str = "the step"
    """Whose configuration it is, for errors."""
    _loaded: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def for_run(
        cls,
        output_path: str,
        prefix: str,
        *,
        region: str | None = None,
        runtime_args: Mapping[str, Any] | None = None,
        deps: "Iterable[ArtifactStep[Any]]" = (),
    ) -> "StepContext":
        """For a run; the arguments are Marin's.

        Args:
            output_path: the step's folder.
            prefix: the storage prefix, below which dependencies lie.
            region: where it runs; found out when it is asked for, if None.
            runtime_args: values for :meth:`runtime_arg`.
            deps: the artifacts that may be asked for.
        """
        return cls(output_path, prefix, False, region, dict(runtime_args or {}), tuple(deps))

    @classmethod
    def for_fingerprint(
        cls, runtime_arg_keys: Iterable[str] = (), deps: "Iterable[ArtifactStep[Any]]" = ()
    ) -> "StepContext":
        """With stand-ins for everything that bears no identity; as Marin's, arguments included.

        Args:
            runtime_arg_keys: names for :meth:`runtime_arg`.
            deps: the artifacts that may be asked for.
        """
        stand_ins = {key: f"<{key}>" for key in runtime_arg_keys}
        return cls("<output_path>", "<prefix>", True, "<region>", stand_ins, tuple(deps))

    @property
    def region(self) -> str:
        """Where it runs: the Google Cloud instance's region, else that of the prefix.

        Raises:
            StepError: neither names one.
        """
        region = self._region or find_region(self.prefix)
        if region is None:
            raise StepError(
                f"{self._asking} ({self.output_path}) asks for ctx.region, which is unknown: no "
                f"metadata server of Google Cloud answers, and the prefix {self.prefix} is not in "
                "a bucket gs://marin-<region>. Run it where one of the two is so, or take the "
                "region from ctx.runtime_arg."
            )
        return region

    def artifact_path(self, dep: "ArtifactStep[Any]") -> str:
        """Where a dependency lies; ``name@version`` for the fingerprint.

        Raises:
            UndeclaredDependencyError: the step does not list it in ``deps``.
        """
        self._require_declared(dep)
        return dep.identity if self.is_fingerprint else dep.path(self.prefix)

    def resolved(self, dep: "ArtifactStep[A]") -> A:
        """A dependency, loaded once.

        Raises:
            UndeclaredDependencyError: the step does not list it in ``deps``.
            ValueError: there is nothing to read for a fingerprint.
            ArtifactTypeMismatchError: it was recorded as another type.
        """
        if self.is_fingerprint:
            raise ValueError(
                f"{self._asking}: resolved() has nothing to read for the fingerprint. Ask "
                "is_fingerprint first, and give what bears identity instead."
            )
        self._require_declared(dep)
        if id(dep) not in self._loaded:
            self._loaded[id(dep)] = dep.artifact_type.raw_load(dep.path(self.prefix))
        found: A = self._loaded[id(dep)]
        return found

    def runtime_arg(self, key: str) -> Any:
        """One of the step's ``runtime_args``; ``<key>`` for the fingerprint.

        Raises:
            KeyError: the step has no such argument.
        """
        if key not in self._runtime_args:
            known = ", ".join(sorted(self._runtime_args)) or "none"
            raise KeyError(f"{self._asking} has no runtime argument {key!r}; it has {known}")
        return self._runtime_args[key]

    def _require_declared(self, dep: "ArtifactStep[Any]") -> None:
        if not any(dep is declared for declared in self._deps):
            raise UndeclaredDependencyError(
                f"{self._asking} asks for {dep.identity}, which is not in its deps. Add it there, "
                "so that it is built first."
            )
