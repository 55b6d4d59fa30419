"""The context in which builders leave versions out, as in Marin."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from marin_dagster.errors import VersionError
from marin_dagster.steps.versions import check_version


@dataclass(frozen=True)
class VersionCodex:
    """Which version an artifact has when its builder says none.

    Raises:
        VersionError: the default, or one of the overrides, is no version.
    """

    default: str
    """For every name without an override."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """For single names."""
    _asked: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_version(self.default)
        for name, version in self.overrides.items():
            try:
                check_version(version)
            except VersionError as error:
                raise VersionError(f"override of {name!r}: {error}") from None

    def version_for(self, name: str) -> str:
        """The version for ``name``."""
        self._asked.add(name)
        return self.overrides.get(name, self.default)

    def unused_overrides(self) -> frozenset[str]:
        """Names with an override that nobody has asked for, probably misspelt."""
        return frozenset(self.overrides.keys() - self._asked)


@dataclass(frozen=True)
class BuildContext:
    """What holds for all handles that are made inside it."""

    versions: VersionCodex


_current: ContextVar[BuildContext | None] = ContextVar("marin_dagster_build_context", default=None)


@contextmanager
def build_context(context: BuildContext) -> Iterator[BuildContext]:
    """Handles that are made in this context may leave their version out. Contexts nest."""
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def current_build_context() -> BuildContext | None:
    """The innermost :func:`build_context`; None outside."""
    return _current.get()


def resolve_version(name: str, version: str | None) -> str:
    """``version``, else what the current :func:`build_context` says for ``name``.

    Raises:
        VersionError: neither says one.
    """
    if version is not None:
        return version
    context = current_build_context()
    if context is None:
        raise VersionError(
            f"artifact {name!r} has no version. Give version=, or make it inside "
            "build_context(BuildContext(VersionCodex(default=…)))."
        )
    return context.versions.version_for(name)
