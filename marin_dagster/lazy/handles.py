"""``ArtifactStep``: a handle to an artifact that is addressed by name and version, not by a hash.

A handle's recipe is ``run(build_config(context))``. The values that ``build_config`` contains are
its identity; what it takes from the :class:`StepContext` (paths, the prefix, runtime arguments) is
not. The recipe's hash is its *fingerprint*: it is recorded and compared, but is not part of the
address. The model and all names are Marin's.

:func:`lower` turns handles into ``StepSpec``s, which the rest of this package runs. A lowered
step's address is ``{name}/{version}``. Its fingerprint, version, type and dependencies are its
attributes, as in Marin, so either side serves what the other has built. Its function builds the
configuration, calls the handle's ``run``, and writes the record itself.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from marin_dagster.cache import ArtifactRecord, OutputDir, launch_provenance, write_record
from marin_dagster.cache.status import STATUS_FILE
from marin_dagster.errors import (
    AdoptedDataMissingError,
    CollisionError,
    FingerprintMismatchError,
    GraphError,
    VersionError,
)
from marin_dagster.lazy.artifact import Artifact, check_result, result_type_name
from marin_dagster.lazy.step_context import StepContext
from marin_dagster.steps import StepLike, StepSpec
from marin_dagster.steps.artifact_versions import check_name, check_version, is_mutable_version
from marin_dagster.steps.fingerprint import canonical_json, fingerprint_hash
from marin_dagster.steps.paths import is_relative, join, output_prefix
from marin_dagster.steps.protocol import Handle
from marin_dagster.steps.remote import is_remote
from marin_dagster.steps.text import shown
from marin_dagster.steps.toposort import deps_first

A = TypeVar("A", bound=Artifact)


@dataclass(frozen=True, eq=False)
class ArtifactStep(Handle, Generic[A]):
    """One version of an artifact, and how to build it. Creating a handle runs nothing.

    Handles are hashable and compare by identity.

    Raises:
        StepNameError: the name cannot be part of an address.
        VersionError: the version is not valid.
        CollisionError: the handle is both adopted and pinned.
    """

    name: str
    """First part of the address; ``/`` makes folders."""
    version: str
    """Second part of the address: ``YYYY.MM.DD[.N]``, or a dev version (``dev``,
    ``<label>-dev``), which every run builds again."""
    artifact_type: type[A]
    """The type to load the artifact as."""
    run: Callable[[Any], Any]
    """Builds the artifact from its configuration. Returns it, or None if its files are all."""
    build_config: Callable[[StepContext], Any]
    """Returns the configuration. Also called for the fingerprint, with placeholder values."""
    deps: Sequence["ArtifactStep[Any]"] = ()
    """The artifacts that ``build_config`` uses."""
    runtime_args: Mapping[str, Any] = field(default_factory=dict)
    """Values for ``StepContext.runtime_arg``; not part of the identity."""
    override_path: str | None = None
    """A pin: the path of finished data. No record is written there."""
    adopt_source: str | None = None
    """The path of adopted data; see :meth:`adopt`."""
    adopt_config: dict[str, Any] | None = None
    """The configuration to record for adopted data."""
    expected_fingerprint: str | None = None
    """If set, any other fingerprint, of this recipe or of the finished output, is an error."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_version(self.version)
        if self.adopt_source is not None and self.override_path is not None:
            raise CollisionError(
                f"{self.identity} is both adopted (from {self.adopt_source}) and pinned (to "
                f"{self.override_path}). Leave one out."
            )
        object.__setattr__(self, "deps", tuple(self.deps))

    @classmethod
    def adopt(
        cls,
        name: str,
        version: str,
        source: str,
        *,
        kind: type[Any] = Artifact,
        config: dict[str, Any] | None = None,
    ) -> "ArtifactStep[Any]":
        """A handle to data that exists already. The data is neither moved nor computed.

        Steps that depend on it get ``source``; running it writes a record at its address.

        Args:
            name: first part of the address.
            version: second part.
            source: the data's path: relative to the prefix, absolute, or a URL.
            kind: the type to load it as.
            config: the configuration to record.
        """
        return cls(
            name=name,
            version=version,
            artifact_type=kind,
            run=_nothing_to_run,
            build_config=lambda context: None,
            adopt_source=source,
            adopt_config=config,
        )

    @property
    def identity(self) -> str:
        """``name@version``."""
        return f"{self.name}@{self.version}"

    def fingerprint_payload(self) -> str:
        """The canonical JSON that :meth:`fingerprint` hashes.

        Raises:
            HashAttributeError: see :func:`canonical_json`.
        """
        if self.adopt_source is not None:
            adopted = {"adopt_source": self.adopt_source, "config": self.adopt_config}
            return json.dumps(adopted, sort_keys=True)
        context = StepContext.for_fingerprint(self.runtime_args, self.deps)
        return canonical_json(self.build_config(replace(context, _step=self.identity)))

    def fingerprint(self) -> str:
        """The recipe's hash, 8 hex digits; the same under every prefix."""
        return fingerprint_hash(self.fingerprint_payload())

    def path(self, prefix: str | None = None) -> str:
        """The path for consumers: the adopted source, the pin, or the address."""
        location = self.adopt_source or self.override_path or f"{self.name}/{self.version}"
        return join(output_prefix(prefix), location) if is_relative(location) else location

    def run_context(self, output_path: str, prefix: str) -> StepContext:
        """The context from which a run builds this handle's configuration.

        Args:
            output_path: the step's folder.
            prefix: the storage prefix of the dependencies.
        """
        context = StepContext.for_run(
            output_path, prefix, runtime_args=self.runtime_args, deps=self.deps
        )
        return replace(context, _step=self.identity)

    def lower(self, memo: dict[int, StepLike] | None = None) -> StepLike:
        """The handle and everything upstream as ``StepSpec``s; see
        :func:`marin_dagster.lazy.lower`."""
        return lower(self, memo)


def materialized_config(handle: ArtifactStep[Any], prefix: str) -> Any:
    """The configuration that a run under ``prefix`` would use, for inspection and tests. Runs
    nothing.

    Args:
        handle: the handle.
        prefix: the storage prefix.
    """
    return handle.build_config(handle.run_context(handle.path(prefix), prefix))


def lower(handle: ArtifactStep[Any], memo: dict[int, StepLike] | None = None) -> StepLike:
    """A handle and everything upstream as ``StepSpec``s, one for each handle. Runs nothing.

    Args:
        handle: the handle.
        memo: the steps of handles that are lowered already, by the handle's ``id``; new ones are
            added.

    Raises:
        FingerprintMismatchError: a handle expects another fingerprint.
        VersionError: a fixed version depends on a dev version.
        HashAttributeError: a configuration cannot be fingerprinted.
        GraphError: a dependency is not a handle.
    """
    done = {} if memo is None else memo
    for one in deps_first([handle], stop=lambda found: id(found) in done, check=_check_is_handle):
        done[id(one)] = _lower_one(one, [done[id(dep)] for dep in one.deps])
    return done[id(handle)]


def _check_is_handle(value: Any, where: str) -> None:
    if not isinstance(value, ArtifactStep):
        raise GraphError(
            f"{where}: {shown(value)} is a {type(value).__name__}, not an ArtifactStep. A handle "
            "depends on handles only; bring other data in with ArtifactStep.adopt."
        )


def _lower_one(handle: ArtifactStep[Any], deps: list[StepLike]) -> StepSpec:
    payload = handle.fingerprint_payload()
    fingerprint = fingerprint_hash(payload)
    expected = handle.expected_fingerprint
    if expected not in (None, fingerprint):
        raise FingerprintMismatchError(
            f"{handle.identity}: its recipe has the fingerprint {fingerprint}, but it expects "
            f"{expected}. If the change is intended, give it a new version and the new fingerprint."
        )
    if not is_mutable_version(handle.version):
        for dep in handle.deps:
            if is_mutable_version(dep.version):
                raise VersionError(
                    f"{handle.identity} is a fixed version but depends on {dep.identity}, a dev "
                    "version, which every run builds again. Give both a dev version, or the "
                    "dependency a fixed one."
                )
    attributes: dict[str, Any] = {
        "fingerprint": fingerprint,
        "version": handle.version,
        "result_type": result_type_name(handle.artifact_type),
        "deps": [dep.identity for dep in handle.deps],
    }
    if expected is not None:
        attributes["expected_fingerprint"] = expected
    function: Callable[[str], Any] = _Build(handle, fingerprint, payload)
    run: Any = handle.run
    if is_remote(run):
        function = replace(run, fn=function)
    return StepSpec(
        name=handle.name,
        override_output_path=handle.override_path or f"{handle.name}/{handle.version}",
        deps=deps,
        hash_attrs=attributes,
        fingerprint_payload=payload,
        writes_record=True,
        fn=function,
    )


def load(handle: ArtifactStep[Any]) -> Artifact:
    """Load the artifact of a handle that has been built.

    Raises:
        ArtifactTypeMismatchError: the record names another type.
    """
    found: Artifact = handle.artifact_type.raw_load(handle.path())
    return found


@dataclass(frozen=True)
class _Build:
    """The function of a lowered step."""

    handle: ArtifactStep[Any]
    fingerprint: str
    payload: str

    @property
    def __wrapped__(self) -> Callable[[Any], Any] | None:
        """The user's function, for code that displays it; None for adopted data."""
        return None if self.handle.adopt_source is not None else self.handle.run

    def __call__(self, output_path: str) -> None:
        handle = self.handle
        if handle.override_path is not None:
            raise AdoptedDataMissingError(
                f"{handle.identity} is pinned to {output_path}, which is not finished, and no run "
                "builds a pin. If its data is complete, write SUCCESS into "
                f"{STATUS_FILE} beside it."
            )
        if handle.adopt_source is not None:
            self._require_data(handle.path())
            self._record(output_path, config=handle.adopt_config, source=handle.path())
            return
        config = handle.build_config(handle.run_context(output_path, output_prefix(None)))
        run: Any = handle.run
        result = (run.fn if is_remote(run) else run)(config)
        check_result(result, handle.artifact_type, where=f"{handle.identity} ({output_path})")
        kept = result.result_payload() if hasattr(result, "result_payload") else None
        document = json.loads(canonical_json(config))
        # The record's field holds objects only; the payload holds any configuration.
        recorded = document if isinstance(document, dict) else None
        self._record(output_path, config=recorded, result=kept)

    def _require_data(self, source: str) -> None:
        if not OutputDir.at(source).exists():
            raise AdoptedDataMissingError(
                f"{self.handle.identity} adopts {source}, which does not exist. Put the data "
                "there, or change the source."
            )

    def _record(
        self,
        output_path: str,
        *,
        config: dict[str, Any] | None,
        source: str | None = None,
        result: dict[str, Any] | None = None,
    ) -> None:
        handle = self.handle
        record = ArtifactRecord(
            name=handle.name,
            version=handle.version,
            fingerprint=self.fingerprint,
            result_type=result_type_name(handle.artifact_type),
            output_path=output_path,
            deps=[dep.identity for dep in handle.deps],
            config=config,
            source=source,
            result=result,
            fingerprint_payload=self.payload,
            provenance=launch_provenance(),
        )
        write_record(OutputDir.at(output_path), record)


def _nothing_to_run(config: Any) -> None:
    raise AssertionError("adopted data is not computed")
