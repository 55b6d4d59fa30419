"""Lowering: a graph of handles as a graph of ``StepSpec``, which everything else here runs.

A lowered step is addressed ``{name}/{version}``; its fingerprint, version, type and dependencies
are attributes, as Marin's are, so either side serves what the other has built. Its function builds
the configuration, calls the handle's ``run``, and writes the record itself.
"""

import dataclasses
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from marin_dagster.cache import ArtifactRecord, OutputDir, launch_provenance, write_record
from marin_dagster.cache.status import STATUS_FILE
from marin_dagster.errors import (
    AdoptedDataMissingError,
    FingerprintMismatchError,
    GraphError,
    ResultError,
    VersionError,
)
from marin_dagster.lazy.artifact import Artifact, result_type_name
from marin_dagster.lazy.handles import ArtifactStep
from marin_dagster.steps import StepLike, StepSpec
from marin_dagster.steps.fingerprint import canonical_json, fingerprint_hash
from marin_dagster.steps.paths import output_prefix
from marin_dagster.steps.remote import is_remote
from marin_dagster.steps.toposort import deps_first
from marin_dagster.steps.versions import is_mutable_version


def lower(handle: ArtifactStep[Any], memo: dict[int, StepLike] | None = None) -> StepLike:
    """A handle and everything above it, each handle once, as ``StepSpec``. Runs nothing.

    Args:
        handle: the handle.
        memo: the steps of handles that have been lowered already; grows.

    Raises:
        FingerprintMismatchError: a handle expects another fingerprint.
        VersionError: a fixed version depends on a ``dev`` version.
        HashAttributeError: a configuration that cannot be fingerprinted.
        GraphError: a dependency is no handle.
    """
    done = {} if memo is None else memo
    for one in deps_first([handle], stop=lambda found: id(found) in done, check=_check_is_handle):
        done[id(one)] = _lower_one(one, [done[id(dep)] for dep in one.deps])
    return done[id(handle)]


def _check_is_handle(value: Any, where: str) -> None:
    if not isinstance(value, ArtifactStep):
        raise GraphError(
            f"{where}: {value!r:.80} is a {type(value).__name__}, not an ArtifactStep. A handle "
            "depends on handles only; bring other data in with ArtifactStep.adopt."
        )


def _lower_one(handle: ArtifactStep[Any], deps: list[StepLike]) -> StepSpec:
    payload = handle.fingerprint_payload()
    fingerprint = fingerprint_hash(payload)
    expected = handle.expected_fingerprint
    if expected not in (None, fingerprint):
        raise FingerprintMismatchError(
            f"{handle.identity}: its recipe has the fingerprint {fingerprint}, and it expects "
            f"{expected}. If the change is meant, give it a new version and the new fingerprint."
        )
    if not is_mutable_version(handle.version):
        for dep in handle.deps:
            if is_mutable_version(dep.version):
                raise VersionError(
                    f"{handle.identity} is a fixed version and depends on {dep.identity}, which is "
                    "built every time. Give both a dev version, or the dependency a fixed one."
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
        function = dataclasses.replace(run, fn=function)
    return StepSpec(
        name=handle.name,
        override_output_path=handle.override_path or f"{handle.name}/{handle.version}",
        deps=deps,
        hash_attrs=attributes,
        fingerprint_payload=payload,
        writes_record=True,
        fn=function,
    )


@dataclass(frozen=True)
class _Build:
    """The function of a lowered step."""

    handle: ArtifactStep[Any]
    fingerprint: str
    payload: str

    @property
    def __wrapped__(self) -> Callable[[Any], Any] | None:
        """What the handle's author wrote, for those who show it; adopted data has no author."""
        return None if self.handle.adopt_source is not None else self.handle.run

    def __call__(self, output_path: str) -> None:
        handle = self.handle
        if handle.override_path is not None:
            raise AdoptedDataMissingError(
                f"{handle.identity} is pinned to {output_path}, where nothing is finished. Nothing "
                "is built into a pin: if its data is complete, write SUCCESS into "
                f"{STATUS_FILE} beside it."
            )
        if handle.adopt_source is not None:
            self._require_data(handle.path())
            self._record(output_path, config=handle.adopt_config, source=handle.path())
            return
        config = handle.build_config(handle.run_context(output_path, output_prefix(None)))
        run: Any = handle.run
        result = (run.fn if is_remote(run) else run)(config)
        self._check(result, output_path)
        kept = result.result_payload() if hasattr(result, "result_payload") else None
        document = json.loads(canonical_json(config))
        # The record's field is for objects; the payload has any other configuration, too.
        recorded = document if isinstance(document, dict) else None
        self._record(output_path, config=recorded, result=kept)

    def _check(self, result: Any, output_path: str) -> None:
        """Refuse what nobody could load again; a fixed version would be spoilt by it."""
        wanted = self.handle.artifact_type
        where = f"{self.handle.identity} ({output_path})"
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()
            raise ResultError(f"{where}: its function is async or a generator, so it never ran.")
        if result is not None and not hasattr(result, "result_payload"):
            raise ResultError(
                f"{where}: its function returned {result!r:.80}. Return None, or an "
                f"instance of {wanted.__qualname__}."
            )
        if isinstance(result, type) or (result is not None and not isinstance(result, wanted)):
            returned = (
                f"the class {result.__qualname__} itself"
                if isinstance(result, type)
                else f"a {type(result).__qualname__}"
            )
            raise ResultError(
                f"{where}: its function returned {returned}. Return None, or an instance of "
                f"{wanted.__qualname__}, as which it is to be loaded."
            )

    def _require_data(self, source: str) -> None:
        folder = OutputDir.at(source)
        if not folder.exists():
            raise AdoptedDataMissingError(
                f"{self.handle.identity} adopts {source}, and there is nothing. Put the data "
                "there, or adopt it from where it is."
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


def load(handle: ArtifactStep[Any]) -> Artifact:
    """The artifact of a handle that has been built.

    Raises:
        ArtifactTypeMismatchError: it was recorded as another type.
    """
    found: Artifact = handle.artifact_type.raw_load(handle.path())
    return found
