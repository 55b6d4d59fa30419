"""Versions of lazy artifacts, and the addresses that they are part of.

A version is a date, ``YYYY.MM.DD`` or ``YYYY.MM.DD.N``, or a dev version, ``dev`` or
``<label>-dev``, which is mutable: every run builds it again. The rules are Marin's.
"""

import re
from urllib.parse import urlparse

from marin_dagster.errors import StepNameError, VersionError

_DATE = re.compile(r"\d{4}\.\d{2}\.\d{2}(\.\d+)?")


def is_mutable_version(version: str) -> bool:
    """Whether every run builds a version again: ``dev`` or ``<label>-dev``."""
    return version == "dev" or version.endswith("-dev")


def is_version(text: str) -> bool:
    """Whether a text has the form of a version: a date or a dev version."""
    return is_mutable_version(text) or _DATE.fullmatch(text) is not None


def check_name(name: str) -> None:
    """Refuse a name that cannot be part of an address ``{prefix}/{name}/{version}``.

    Raises:
        StepNameError: it is empty, has a URL scheme or ``..``, or begins or ends with ``/``.
    """
    if fault := _fault(name):
        raise StepNameError(f"artifact {name!r:.60}: its name {fault}. Rename it.")


def check_version(version: str) -> None:
    """Refuse a text that is not a version.

    Raises:
        VersionError: it is neither a date nor a dev version, or cannot be part of an address.
    """
    fault = _fault(version)
    if fault is None and not is_version(version):
        fault = "is not a date (YYYY.MM.DD or YYYY.MM.DD.N), dev or <label>-dev"
    if fault:
        raise VersionError(f"the version {version!r:.60} {fault}.")


def _fault(segment: str) -> str | None:
    if not isinstance(segment, str) or not segment:
        return "is empty"
    if "://" in segment or urlparse(segment).scheme:
        return "has a URL scheme"
    if ".." in segment:
        return "contains '..'"
    if segment.startswith("/") or segment.endswith("/"):
        return "begins or ends with '/'"
    return None
