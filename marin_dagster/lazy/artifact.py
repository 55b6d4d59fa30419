"""``Artifact``: the output of a lazy step, as its consumers load it. Also results that step
functions read and write themselves."""

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from marin_dagster.cache import ArtifactRecord, OutputDir, read_record, write_record
from marin_dagster.cache.record import result_payload
from marin_dagster.errors import (
    ArtifactTypeMismatchError,
    OutputNotReadyError,
    ResultError,
    ResultMissingError,
)
from marin_dagster.steps.paths import is_relative, join, output_prefix
from marin_dagster.steps.text import shown

M = TypeVar("M", bound=BaseModel)

_BASE_NAME = "marin.execution.artifact.Artifact"
"""The type that Marin records for an artifact without a class of its own; so do we."""


class Artifact(BaseModel):
    """A produced artifact: a folder with a record.

    Subclasses add fields; a step's function returns an instance, the fields go into the record, and
    :meth:`raw_load` reads them back. Field and method names are Marin's.
    """

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    path: str = ""
    """Its folder."""

    @cached_property
    def record(self) -> ArtifactRecord | None:
        """The record at :attr:`path`, read at first use; None if there is none.

        Raises:
            RecordError: the record cannot be read.
        """
        return read_record(OutputDir.at(self.path))

    def result_payload(self) -> dict[str, Any] | None:
        """The JSON to record: the declared fields except ``path``; None if there are none."""
        names = type(self).model_fields.keys() - {"path"}
        return (self.model_dump(mode="json", include=set(names)) or None) if names else None

    @classmethod
    def raw_load(cls, source: str) -> Self:
        """Load the artifact at an output path, without checking its status.

        Adopted and pinned data have no record beside them; then only ``path`` is set.

        Raises:
            ArtifactTypeMismatchError: the record names another type.
            OutputNotReadyError: the recorded fields do not fit this type.
            RecordError: the record cannot be read.
        """
        record = read_record(OutputDir.at(source))
        if record is None:
            return cls(path=source)
        wanted = result_type_name(cls)
        if record.result_type and record.result_type != wanted:
            raise ArtifactTypeMismatchError(
                f"{source} was recorded as {record.result_type}, not as {wanted}. Load it as "
                f"{record.result_type}, or give the changed type a new version."
            )
        try:
            fields = {**(record.result or {}), "path": source}
            # The record has field names, even where the type has aliases.
            return cls.model_validate(fields, by_alias=True, by_name=True)
        except ValidationError as error:
            raise OutputNotReadyError(
                f"{source}: the record does not fit {wanted}: {error}"
            ) from error


def result_type_name(kind: type[Any]) -> str:
    """A type's name in records: its module and qualified name."""
    return _BASE_NAME if kind is Artifact else f"{kind.__module__}.{kind.__qualname__}"


def check_result(result: Any, wanted: type[Any], *, where: str) -> None:
    """Refuse a result that could not be loaded again: a fixed version would be spoilt by it.

    Args:
        result: what the step's function returned.
        wanted: the type that consumers load.
        where: the step and its path, for the error.

    Raises:
        ResultError: the result is neither None nor an instance of ``wanted``.
    """
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
        raise ResultError(f"{where}: its function is async or a generator, so it never ran.")
    if result is not None and not hasattr(result, "result_payload"):
        raise ResultError(
            f"{where}: its function returned {shown(result)}. Return None, or an instance of "
            f"{wanted.__qualname__}."
        )
    if isinstance(result, type) or (result is not None and not isinstance(result, wanted)):
        returned = (
            f"the class {result.__qualname__} itself"
            if isinstance(result, type)
            else f"a {type(result).__qualname__}"
        )
        raise ResultError(
            f"{where}: its function returned {returned}. Return None, or an instance of "
            f"{wanted.__qualname__}, the type that consumers load."
        )


def read_artifact(output_path: str, schema: type[M]) -> M:
    """The recorded result of a step, as a pydantic model. Same signature as Marin's.

    Args:
        output_path: the step's folder, absolute or relative to the prefix.
        schema: the model to validate the result with.

    Raises:
        TypeError: ``schema`` is not a pydantic model.
        ResultMissingError: there is no record, or it has no result.
        OutputNotReadyError: the result does not fit the model.
        RecordError: the record cannot be read.
        StoreError: the store refused.
    """
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        raise TypeError(f"read_artifact needs a pydantic model to load as, not {shown(schema)}")
    path = _absolute(output_path)
    record = read_record(OutputDir.at(path))
    if record is None or record.result is None:
        raise ResultMissingError(
            f"{path}: there is no record with a result. Build the step that writes it, and let its "
            "function return the result or write it with write_artifact."
        )
    return record.typed_result(schema, where=path)


def write_artifact(value: Any, output_path: str) -> None:
    """Write a record with only a result, for :func:`read_artifact`. Same signature as Marin's.

    Args:
        value: a dictionary, a dataclass or a pydantic model.
        output_path: the step's folder, absolute or relative to the prefix.

    Raises:
        ResultError: the value cannot be recorded.
        StoreError: the store refused.
    """
    path = _absolute(output_path)
    record = ArtifactRecord(output_path=path, result=result_payload(_Output(path, path), value))
    write_record(OutputDir.at(path), record)


@dataclass(frozen=True)
class _Output:
    """The step that an error names."""

    name_with_hash: str
    output_path: str


def _absolute(path: str) -> str:
    return join(output_prefix(None), path) if is_relative(path) else path
