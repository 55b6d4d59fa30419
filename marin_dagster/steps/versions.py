"""Versions of lazy artifacts, and the context in which builders leave them out.

A version is a date, ``YYYY.MM.DD`` or ``YYYY.MM.DD.N``, or ``dev`` or ``<label>-dev``, which is
mutable: it is built every time. The rules are Marin's.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from urllib.parse import urlparse

from marin_dagster.errors import StepNameError, VersionError

_DATE = re.compile(r"\d{4}\.\d{2}\.\d{2}(\.\d+)?")


def is_mutable_version(version: str) -> bool:
    """Whether a version is built every time: ``dev`` or ``<label>-dev``."""
    return version == "dev" or version.endswith("-dev")


def is_version(text: str) -> bool:
    """Whether it looks like a version: a date, or one that is built every time."""
    return is_mutable_version(text) or _DATE.fullmatch(text) is not None


def check_name(name: str) -> None:
    """Refuse a name that cannot be part of an address ``{prefix}/{name}/{version}``.

    Raises:
        StepNameError: it is empty, has a URL scheme or ``..``, or begins or ends with ``/``.
    """
    if fault := _fault(name):
        raise StepNameError(f"artifact {name!r:.60}: its name {fault}. Rename it.")


def check_version(version: str) -> None:
    """Refuse what is no version.

    Raises:
        VersionError: it is neither a date nor a ``dev`` version, or cannot be part of an address.
    """
    fault = _fault(version)
    if fault is None and not is_version(version):
        fault = "is no date YYYY.MM.DD or YYYY.MM.DD.N, and neither dev nor <label>-dev"
    if fault:
        raise VersionError(f"the version {version!r:.60} {fault}.")


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


def _fault(segment: str) -> str | None:
    if not isinstance(segment, str) or not segment:
        return "is empty"
    if "://" in segment or urlparse(segment).scheme:
        return "has a URL scheme"
    if ".." in segment:
        return "holds '..'"
    if segment.startswith("/") or segment.endswith("/"):
        return "begins or ends with '/'"
    return None
