"""``Artifact``: what a lazy step has produced, as the code that uses it sees it; and results that
step functions read and write themselves."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from marin_dagster.cache import ArtifactRecord, OutputDir, read_record, write_record
from marin_dagster.cache.record import result_payload
from marin_dagster.errors import (
    ArtifactTypeMismatchError,
    OutputNotReadyError,
    ResultMissingError,
)
from marin_dagster.steps.paths import is_relative, join, output_prefix

M = TypeVar("M", bound=BaseModel)

_BASE_NAME = "marin.execution.artifact.Artifact"
"""What Marin records for an artifact without a type of its own; ours mean the same."""


class Artifact(BaseModel):
    """A produced artifact: a folder with a record.

    Subclasses add fields; a step's function returns an instance, the fields go into the record, and
    :meth:`raw_load` reads them back. Field and method names are Marin's.
    """

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    path: str = ""
    """Where it lies."""

    @cached_property
    def record(self) -> ArtifactRecord | None:
        """The record at :attr:`path`, read at first use; None when there is none.

        Raises:
            RecordError: there is one, but it cannot be read.
        """
        return read_record(OutputDir.at(self.path))

    def result_payload(self) -> dict[str, Any] | None:
        """What the record keeps: the declared fields but ``path``, as JSON; None without any."""
        names = type(self).model_fields.keys() - {"path"}
        return (self.model_dump(mode="json", include=set(names)) or None) if names else None

    @classmethod
    def raw_load(cls, source: str) -> Self:
        """The artifact at an output path, whoever built it, without looking at its status.

        Adopted and pinned data have no record where they lie; then only ``path`` is set.

        Raises:
            ArtifactTypeMismatchError: the record is of another type of artifact.
            OutputNotReadyError: the recorded fields do not fit this type.
            RecordError: the record cannot be read.
        """
        record = read_record(OutputDir.at(source))
        if record is None:
            return cls(path=source)
        wanted = result_type_name(cls)
        if record.result_type and record.result_type != wanted:
            raise ArtifactTypeMismatchError(
                f"{source} was recorded as {record.result_type}, not as {wanted}. Load it as that, "
                "or give the changed type a new version."
            )
        try:
            fields = {**(record.result or {}), "path": source}
            # The record has field names, whatever aliases a type has for its callers.
            return cls.model_validate(fields, by_alias=True, by_name=True)
        except ValidationError as error:
            raise OutputNotReadyError(f"{source}: the record is no {wanted}: {error}") from error


def result_type_name(kind: type[Any]) -> str:
    """What a record calls a type of artifact: its module and qualified name."""
    return _BASE_NAME if kind is Artifact else f"{kind.__module__}.{kind.__qualname__}"


def read_artifact(output_path: str, schema: type[M]) -> M:
    """The result that the record at an output path holds, as a pydantic model. As Marin's.

    Args:
        output_path: the step's folder; a relative one is below the prefix.
        schema: what to validate the result as.

    Raises:
        TypeError: ``schema`` is no pydantic model.
        ResultMissingError: there is no record, or one without a result.
        OutputNotReadyError: the result does not fit the model.
        RecordError: the record cannot be read.
        StoreError: the store refused.
    """
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        raise TypeError(f"read_artifact needs a pydantic model to load as, not {schema!r:.80}")
    path = _absolute(output_path)
    record = read_record(OutputDir.at(path))
    if record is None or record.result is None:
        raise ResultMissingError(
            f"{path}: there is no record with a result. Build the step that writes it, or have its "
            "function return the result or write it with write_artifact."
        )
    return record.typed_result(schema, where=path)


def write_artifact(value: Any, output_path: str) -> None:
    """Write a record with nothing but a result, for :func:`read_artifact`. As Marin's.

    Args:
        value: a dictionary, a dataclass or a pydantic model.
        output_path: the step's folder; a relative one is below the prefix.

    Raises:
        ResultError: a record cannot hold the value.
        StoreError: the store refused.
    """
    path = _absolute(output_path)
    record = ArtifactRecord(output_path=path, result=result_payload(_Output(path, path), value))
    write_record(OutputDir.at(path), record)


@dataclass(frozen=True)
class _Output:
    """What an error names."""

    name_with_hash: str
    output_path: str


def _absolute(path: str) -> str:
    return join(output_prefix(None), path) if is_relative(path) else path
