"""``StepLike``: what this package needs of a step, whoever wrote its class."""

import abc
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from marin_dagster.steps.versions import is_mutable_version, is_version


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


class Handle(abc.ABC):
    """Something that becomes a step by :meth:`lower`, such as a lazy artifact.

    Whatever else has a ``lower()``, as Marin's own handles do, is lowered, too.
    """

    @abc.abstractmethod
    def lower(self, memo: dict[int, StepLike] | None = None) -> StepLike:
        """The step, with everything above it.

        Args:
            memo: steps of handles by the handle's ``id``; a handle in it is not lowered again.
        """


def lowered(terminals: Iterable[Any]) -> list[Any]:
    """The terminals, with handles lowered. A handle that several of ours share is lowered once."""
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

    A lazy artifact has everything that lowering gives it, ours and Marin's alike. An attribute that
    is called ``fingerprint`` or ``version`` makes none: it may be anybody's.
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
    """What its author made the step from: its attributes, or a lazy artifact's configuration.

    Empty for a lazy artifact whose configuration is no object.
    """
    if artifact_version(step) is None or not step.fingerprint_payload:
        return step.hash_attrs
    config = json.loads(step.fingerprint_payload)
    if adopted_source(step) is not None:
        config = config["config"]
    return config if isinstance(config, dict) else {}


def address(step: StepLike) -> str:
    """What people call the step: its folder's path under the prefix.

    ``name_hash``, and ``name/version`` of a lazy artifact, whose hash is in no path. (A path of its
    own, by ``override_output_path``, changes nothing of what a step is called.)
    """
    version = artifact_version(step)
    return step.name_with_hash if version is None else f"{step.name}/{version}"


def is_mutable(step: StepLike) -> bool:
    """Whether the step is built every time, as ``dev`` versions of lazy artifacts are.

    Mirrors Marin, whose StepRunner would rebuild it in the same store: any step counts that has
    both a ``fingerprint`` and a ``dev`` version among its attributes.
    """
    version = step.hash_attrs.get("version")
    has_both = step.hash_attrs.get("fingerprint") is not None and isinstance(version, str)
    return has_both and is_mutable_version(str(version))


def data_version(step: StepLike) -> str:
    """What tells one content of the step's output from another: the fingerprint of a lazy
    artifact, whose address stays when its recipe changes, and the hash of any other step."""
    is_lazy = artifact_version(step) is not None
    return str(step.hash_attrs["fingerprint"]) if is_lazy else step.hash_id


def code_version(step: StepLike, fingerprint: str | None = None) -> str | None:
    """What tells one recipe of the step from another; None for what is built every time.

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
    """Where the data lies of a lazy artifact that adopts some; None for any other step."""
    if artifact_version(step) is None or not step.fingerprint_payload:
        return None
    handle = _handle_of(step)
    if handle is not None and handle.adopt_source is None:
        return None
    payload = json.loads(step.fingerprint_payload)
    if not isinstance(payload, dict) or payload.keys() != {"adopt_source", "config"}:
        return None
    # A recipe may have these very fields; one that is built takes its output path from the context.
    if handle is None and (step.deps or "<output_path>" in step.fingerprint_payload):
        return None
    return str(payload["adopt_source"])


def is_pinned(step: StepLike) -> bool:
    """Whether the step is a lazy artifact that stands for data elsewhere than at its address.

    Its handle says so. Where the function does not know its handle, as when it has been replaced,
    another output path than the step's own address means a pin.
    """
    version = artifact_version(step)
    if version is None:
        return False
    handle = _handle_of(step)
    if handle is not None:
        return handle.override_path is not None
    return step.override_output_path != f"{step.name}/{version}"


def is_external(step: StepLike) -> bool:
    """Whether no run builds the step: its data is made, or was made, by something else."""
    return step.fn is None or is_pinned(step) or adopted_source(step) is not None


def _handle_of(step: StepLike) -> Any:
    """The handle that a step was lowered from; None where its function does not know it."""
    # Out of a RemoteCallable. Ours keep the handle as an attribute, and Marin's as a default value.
    function: Any = getattr(step.fn, "fn", step.fn)
    candidates = (
        getattr(function, "handle", None),
        *(getattr(function, "__defaults__", None) or ()),
    )
    return next((one for one in candidates if _is_handle(one)), None)


def _is_handle(value: Any) -> bool:
    return hasattr(value, "adopt_source") and hasattr(value, "override_path")
