"""``StepLike``: what this package needs of a step, whoever wrote its class."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class StepLike(Protocol):
    """A step of a pipeline.

    Satisfied by :class:`marin_dagster.steps.StepSpec` and by Marin's own
    ``marin.execution.step_spec.StepSpec`` as it is; everything in this package takes either, also
    mixed in one graph. The fields mean what they mean in Marin.
    """

    @property
    def name(self) -> str: ...
    @property
    def deps(self) -> Sequence[Any]: ...
    @property
    def hash_attrs(self) -> Mapping[str, Any]: ...
    @property
    def override_output_path(self) -> str | None: ...
    @property
    def fingerprint_payload(self) -> str | None: ...
    @property
    def writes_record(self) -> bool: ...
    @property
    def fn(self) -> Callable[[str], Any] | None: ...
    @property
    def resources(self) -> Any: ...
    @property
    def hash_id(self) -> str: ...
    @property
    def name_with_hash(self) -> str: ...
    @property
    def output_path(self) -> str: ...
    @property
    def dep_paths(self) -> Sequence[str]: ...
    @property
    def dep_names(self) -> Sequence[str]: ...


def is_mutable(step: StepLike) -> bool:
    """Whether the step is a ``dev`` version of a lazy artifact, which rebuilds every time.

    Mirrors Marin: only steps whose attributes carry a fingerprint have a version, and ``dev`` and
    ``<label>-dev`` are the mutable ones.
    """
    if step.hash_attrs.get("fingerprint") is None:
        return False
    version = str(step.hash_attrs.get("version", ""))
    return version == "dev" or version.endswith("-dev")
