"""``StepSpec``: a step's identity, its dependencies and the function that fills its output.

The model is Marin's. A step's name, its attributes and the identities of its dependencies identify
it; 8 hex digits of their SHA-256 are its hash, and name and hash are the folder of its output.
Nothing here runs or reads anything.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from marin_dagster.errors import GraphError
from marin_dagster.steps import paths
from marin_dagster.steps.attributes import identity_hash
from marin_dagster.steps.protocol import StepLike
from marin_dagster.steps.resources import ResourceConfig
from marin_dagster.steps.toposort import deps_first


@dataclass(frozen=True, eq=False)
class StepSpec:
    """What to build: pure data, identical in meaning to Marin's ``StepSpec``.

    Steps compare by object identity; two with the same ``name_with_hash`` describe the same output.
    """

    name: str
    """Readable name; ``/`` makes folders. Enters the hash."""
    output_path_prefix: str | None = None
    """Folder or URL that contains the output; ``MARIN_PREFIX`` when not given."""
    deps: Sequence[Any] = field(default=(), repr=False)
    """Steps whose outputs this one reads. Their identities enter the hash, in any order."""
    hash_attrs: Mapping[str, Any] = field(default_factory=dict)
    """JSON attributes that enter the hash: a change rebuilds the step and everything downstream."""
    override_output_path: str | None = None
    """Output path instead of ``name_hash``; a relative path is joined to the prefix."""
    fingerprint_payload: str | None = field(default=None, repr=False)
    """Canonical configuration of a lazy artifact, kept in its record; never enters the hash."""
    writes_record: bool = False
    """The function writes the record itself, so the cache must not overwrite it."""
    fn: Callable[[str], Any] | None = field(default=None, repr=False)
    """Called with the output path; fills that folder and may return a dictionary, a dataclass or a
    pydantic model, which becomes the record's ``result``. None: no run builds the output."""
    resources: ResourceConfig | None = None
    """What the function needs. Never enters the hash."""

    def __post_init__(self) -> None:
        if isinstance(self.deps, str) or not isinstance(self.deps, Sequence):
            raise GraphError(
                f"step {self.name!r}: deps must be a list of steps, not {self.deps!r}."
            )
        for name in ("output_path_prefix", "override_output_path"):
            if isinstance(value := getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(value))
        # A copy: appending to the caller's list later must not change an identity already used.
        object.__setattr__(self, "deps", tuple(self.deps))

    @cached_property
    def hash_id(self) -> str:
        """8 hex digits that identify the output, exactly as Marin computes them.

        Raises:
            HashAttributeError: an attribute of this step or of one upstream that JSON cannot hold.
            CycleError: the step depends on itself.
        """
        for step in deps_first([self], stop=_is_hashed)[:-1]:
            step.name_with_hash  # noqa: B018  (fills the caches, dependencies first: no recursion)
        return identity_hash(self.name, self.hash_attrs, self.dep_names)

    @cached_property
    def name_with_hash(self) -> str:
        """``{name}_{hash_id}``."""
        return f"{self.name}_{self.hash_id}"

    @property
    def id(self) -> str:
        """The step's identity: its ``name_with_hash``."""
        return self.name_with_hash

    @cached_property
    def output_path(self) -> str:
        """Where the output is. Resolved once, at first use."""
        override = self.override_output_path
        if override is not None and not paths.is_relative(override):
            return override
        relative = self.name_with_hash if override is None else override
        return paths.join(paths.output_prefix(self.output_path_prefix), relative)

    @cached_property
    def dep_paths(self) -> list[str]:
        """Output paths of the dependencies, in the order of ``deps``."""
        return [dep.output_path for dep in self.deps]

    @cached_property
    def dep_names(self) -> list[str]:
        """``name_with_hash`` of the dependencies, in the order of ``deps``."""
        return [dep.name_with_hash for dep in self.deps]


def _is_hashed(step: StepLike) -> bool:
    # Marin's StepSpec caches under the same names, so a mixed graph is also walked only once.
    return "name_with_hash" in getattr(step, "__dict__", ())
