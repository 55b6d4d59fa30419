"""``StepLike``: what this package needs of a step, its own or Marin's."""

import abc
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from marin_dagster.steps.artifact_versions import is_mutable_version, is_version


class StepLike(Protocol):
    """A step of a pipeline.

    Both :class:`marin_dagster.steps.StepSpec` and Marin's ``marin.execution.step_spec.StepSpec``
    satisfy it; everything in this package takes either, also mixed in one graph. The fields have
    the same meaning as in Marin.
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


class Handle(abc.ABC):
    """An object that :meth:`lower` turns into a step, such as a lazy artifact.

    Any other object with a ``lower()``, such as Marin's handles, is lowered, too.
    """

    @abc.abstractmethod
    def lower(self, memo: dict[int, StepLike] | None = None) -> StepLike:
        """The step, with everything upstream.

        Args:
            memo: steps of handles by the handle's ``id``; a handle in it is not lowered again.
        """


def lowered(terminals: Iterable[Any]) -> list[Any]:
    """The terminals, with handles lowered. A :class:`Handle` that several share is lowered once."""
    memo: dict[int, StepLike] = {}
    steps: list[Any] = []
    for terminal in terminals:
        if isinstance(terminal, Handle):
            steps.append(terminal.lower(memo))
        elif callable(getattr(terminal, "lower", None)) and not isinstance(terminal, str):
            steps.append(terminal.lower())
        else:
            steps.append(terminal)
    return steps


def artifact_version(step: StepLike) -> str | None:
    """The version of a lazy artifact; None for any other step.

    A lazy artifact has all the fields that lowering sets, here and in Marin. An attribute named
    ``fingerprint`` or ``version`` is not enough: any step may have one.
    """
    attrs = step.hash_attrs
    if not step.writes_record or step.override_output_path is None:
        return None
    if not attrs.keys() >= _LOWERED:
        return None
    version, deps = attrs["version"], attrs["deps"]
    if not isinstance(version, str) or not is_version(version):
        return None
    is_lowered = isinstance(deps, (list, tuple)) and len(deps) == len(step.deps)
    return version if is_lowered else None


_LOWERED = {"fingerprint", "version", "result_type", "deps"}


def attributes(step: StepLike) -> Mapping[str, Any]:
    """The step's attributes, or a lazy artifact's configuration.

    Empty for a lazy artifact whose configuration is not an object.
    """
    if artifact_version(step) is None or not step.fingerprint_payload:
        return step.hash_attrs
    config = json.loads(step.fingerprint_payload)
    if adopted_source(step) is not None:
        config = config["config"]
    return config if isinstance(config, dict) else {}


def address(step: StepLike) -> str:
    """The step's readable name: ``name_hash``, or ``name/version`` of a lazy artifact.

    It is the output path under the prefix, unless ``override_output_path`` is another one.
    """
    version = artifact_version(step)
    return step.name_with_hash if version is None else f"{step.name}/{version}"


def is_mutable(step: StepLike) -> bool:
    """Whether the step is built every time, as dev versions of lazy artifacts are.

    Mirrors Marin, whose StepRunner would rebuild it in the same store: any step with both a
    ``fingerprint`` and a dev ``version`` among its attributes.
    """
    version = step.hash_attrs.get("version")
    has_both = step.hash_attrs.get("fingerprint") is not None and isinstance(version, str)
    return has_both and is_mutable_version(str(version))


def data_version(step: StepLike) -> str:
    """Identifies the content of the step's output: the fingerprint of a lazy artifact, whose
    address stays when its recipe changes, and the hash of any other step."""
    is_lazy = artifact_version(step) is not None
    return str(step.hash_attrs["fingerprint"]) if is_lazy else step.hash_id


def code_version(step: StepLike, fingerprint: str | None = None) -> str | None:
    """Identifies the recipe of the step; None for a step that is built every time.

    Args:
        step: the step.
        fingerprint: of another recipe for the same lazy artifact, such as the one that built it.
    """
    if is_mutable(step):
        return None
    version = artifact_version(step)
    if version is None:
        return step.hash_id
    built_by = step.hash_attrs["fingerprint"] if fingerprint is None else fingerprint
    return f"{version}-{built_by}"


def adopted_source(step: StepLike) -> str | None:
    """Where the adopted data of a lazy artifact is; None for any other step."""
    if artifact_version(step) is None or not step.fingerprint_payload:
        return None
    handle = handle_of(step)
    if handle is not None and handle.adopt_source is None:
        return None
    payload = json.loads(step.fingerprint_payload)
    if not isinstance(payload, dict) or payload.keys() != {"adopt_source", "config"}:
        return None
    # A recipe may have the same two fields, but a built one has inputs or its output path in it.
    if handle is None and (step.deps or "<output_path>" in step.fingerprint_payload):
        return None
    return str(payload["adopt_source"])


def is_pinned(step: StepLike) -> bool:
    """Whether the step is a lazy artifact pinned to data that is not at its address.

    Its handle decides. If the function does not hold its handle, because it has been replaced, an
    output path other than the step's address means a pin.
    """
    version = artifact_version(step)
    if version is None:
        return False
    handle = handle_of(step)
    if handle is not None:
        return handle.override_path is not None
    return step.override_output_path != f"{step.name}/{version}"


def is_external(step: StepLike) -> bool:
    """Whether no run builds the step: its data comes from elsewhere."""
    return step.fn is None or is_pinned(step) or adopted_source(step) is not None


def handle_of(step: StepLike) -> Any:
    """The handle that a step was lowered from; None if its function does not hold it."""
    # Our functions hold the handle as an attribute, Marin's as a default.
    candidates = (
        one
        for function in _unwrapped(step.fn)
        for one in (
            getattr(function, "handle", None),
            *(getattr(function, "__defaults__", None) or ()),
        )
    )
    return next((one for one in candidates if _is_handle(one)), None)


def _unwrapped(function: Any) -> Iterator[Any]:
    """The function, then each one inside it: of a RemoteCallable, a partial or a wrapper."""
    seen: set[int] = set()  # a wrapper may name itself
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        yield function
        if isinstance(function, functools.partial):
            function = function.func
        else:
            function = getattr(function, "fn", None) or getattr(function, "__wrapped__", None)


def _is_handle(value: Any) -> bool:
    return hasattr(value, "adopt_source") and hasattr(value, "override_path")
