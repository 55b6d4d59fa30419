"""Names and output paths: joining, making absolute, checking.

Paths stay strings everywhere (``/disk/x``, ``s3://bucket/x``); this module never touches a store.
"""

import functools
import os
import unicodedata
import warnings
from urllib.parse import urlparse

from marin_dagster.errors import MarinDagsterWarning, StepNameError
from marin_dagster.steps.protocol import StepLike

PREFIX_VARIABLE = "MARIN_PREFIX"
"""Environment variable that holds the default output path prefix, as in Marin."""

DEFAULT_PREFIX = "/tmp/marin"
"""Prefix when neither the step nor the environment names one; the same as Marin's."""

MAX_SEGMENT_BYTES = 255
"""The longest file name, in bytes of UTF-8, that common file systems accept."""


def is_relative(path: str) -> bool:
    """Whether ``path`` is relative to a prefix: it has no URL scheme and no leading slash.

    Mirrors Marin's rule for ``override_output_path``.
    """
    return not urlparse(path).scheme and not path.startswith("/")


def join(prefix: str, relative: str) -> str:
    """Join with exactly one separator everywhere; doubled and trailing slashes collapse.

    Object stores do not normalize keys, so ``s3://b//x`` and ``s3://b/x`` would be two objects.
    """
    scheme, separator, rest = prefix.rpartition("://")
    root = "/" if rest.startswith("/") else ""
    segments = [part for part in f"{rest}/{relative}".split("/") if part]
    return f"{scheme}{separator}{root}{'/'.join(segments)}"


def output_prefix(own: str | None) -> str:
    """The prefix for a step: its own, else ``MARIN_PREFIX``, else ``/tmp/marin`` with a warning.

    A relative local prefix is made absolute here, once, so that data, status, lock and record
    stay together when a step changes the working directory.
    """
    prefix = own or os.environ.get(PREFIX_VARIABLE)
    if not prefix:
        _warn_not_durable()
        return DEFAULT_PREFIX
    absolute = "://" in prefix or prefix.startswith("/")
    return prefix if absolute else os.path.abspath(prefix)


@functools.cache
def _warn_not_durable() -> None:
    warnings.warn(
        f"{PREFIX_VARIABLE} is not set: outputs go to {DEFAULT_PREFIX}, which does not survive a "
        f"reboot. Set {PREFIX_VARIABLE} to a durable folder or bucket.",
        MarinDagsterWarning,
        stacklevel=2,
    )


def check_step_path(step: StepLike) -> None:
    """Refuse a step whose name or output path cannot be a folder below the prefix.

    Raises:
        StepNameError: the name is empty, absolute, contains ``..``, a URL scheme or control
            characters; or the output path contains ``..``, is the prefix itself, cannot be
            written as UTF-8, or has a part that is too long for a file name (255 bytes).
    """
    if fault := _name_fault(step.name):
        raise StepNameError(f"step {step.name!r:.60}: its name {fault}. Rename the step.")
    if fault := _path_fault(step):
        raise StepNameError(
            f"step {step.name!r:.60}: its output path {step.output_path!r:.90} {fault}. Shorten or "
            "change the name, override_output_path or output_path_prefix."
        )


def _name_fault(name: str) -> str | None:
    if not isinstance(name, str) or not name.strip():
        return "is empty"
    if "://" in name or "::" in name:
        return "contains a URL scheme ('://' or '::')"
    if ".." in name:
        return "contains '..'"
    if any(part in ("", ".") for part in name.split("/")):
        return "has an empty part (a leading, trailing or doubled '/', or a '.')"
    if _has_control_character(name):
        return "contains a control character"
    return None


def _path_fault(step: StepLike) -> str | None:
    path = step.output_path
    segments = path.rpartition("://")[2].split("/")
    override = step.override_output_path
    if override is not None and not any(part for part in override.split("/")):
        return "is the prefix itself, which other steps share"
    if ".." in segments or "." in segments:
        return "contains '.' or '..'"
    if "::" in path:
        return "chains URLs with '::'"
    if _has_control_character(path):
        return "contains a control character"
    longest = max(len(segment.encode()) for segment in segments)
    if longest > MAX_SEGMENT_BYTES:
        return f"has a part of {longest} bytes; a file name can have at most {MAX_SEGMENT_BYTES}"
    return None


def _has_control_character(text: str) -> bool:
    # Lone surrogates, too: UTF-8 cannot encode them.
    return any(unicodedata.category(character) in ("Cc", "Cs") for character in text)
