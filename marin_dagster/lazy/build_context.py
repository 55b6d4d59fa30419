"""Contexts that give handles their versions. The names are Marin's."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from marin_dagster.errors import VersionError
from marin_dagster.steps.artifact_versions import check_version


@dataclass(frozen=True)
class VersionCodex:
    """The versions of artifacts that are created without one.

    Raises:
        VersionError: the default or an override is not a valid version.
    """

    default: str
    """The version of every name without an override."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Versions by name."""
    _used: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_version(self.default)
        for name, version in self.overrides.items():
            try:
                check_version(version)
            except VersionError as error:
                raise VersionError(f"override of {name!r}: {error}") from None

    def version_for(self, name: str) -> str:
        """The version for ``name``."""
        self._used.add(name)
        return self.overrides.get(name, self.default)

    def unused_overrides(self) -> frozenset[str]:
        """Overrides that no artifact has used; their names are probably misspelt."""
        return frozenset(self.overrides.keys() - self._used)


@dataclass(frozen=True)
class BuildContext:
    """Settings for all handles that are created inside :func:`build_context`."""

    versions: VersionCodex


_current: ContextVar[BuildContext | None] = ContextVar("marin_dagster_build_context", default=None)


@contextmanager
def build_context(context: BuildContext) -> Iterator[BuildContext]:
    """Handles created in this context may omit their version. Contexts nest."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def current_build_context() -> BuildContext | None:
    """The innermost :func:`build_context`; None outside."""
    return _current.get()


def resolve_version(name: str, version: str | None) -> str:
    """``version``, else the version for ``name`` in the current :func:`build_context`.

    Raises:
        VersionError: there is neither.
    """
    if version is not None:
        return version
    context = current_build_context()
    if context is None:
        raise VersionError(
            f"artifact {name!r} has no version. Pass version=, or create it inside "
            "build_context(BuildContext(VersionCodex(default=…)))."
        )
    return context.versions.version_for(name)
