"""The record ``.artifact.json``: what was built, from which inputs, by which user, and the result.

The fields and both older forms are Marin's: a bare payload without record fields becomes the
``result``, and an old executor's ``.executor_info`` replaces a missing record. The
``.executor_info`` that a scheduler writes before a step runs is never read as a record.
"""

import dataclasses
import inspect
import json
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_jsonable_python

from marin_dagster.cache.provenance import (
    AnyProvenance,
    Provenance,
    RunIdentity,
    RunProvenance,
    launch_provenance,
)
from marin_dagster.cache.secrets import scrub
from marin_dagster.cache.store import OutputDir
from marin_dagster.errors import OutputNotReadyError, RecordError, ResultError
from marin_dagster.steps.paths import join
from marin_dagster.steps.protocol import StepLike
from marin_dagster.steps.text import shown

RECORD_FILE = ".artifact.json"
INFO_FILE = ".executor_info"

_SCHEDULER_INFO = "step_runner"
"""``executor_version`` of the ``.executor_info`` that a scheduler writes, ours and Marin's."""

M = TypeVar("M", bound=BaseModel)


class ArtifactRecord(BaseModel):
    """The record of one output, as Marin reads and writes it."""

    name: str = ""
    version: str = ""
    fingerprint: str = ""
    result_type: str = ""
    output_path: str = ""
    deps: list[str] = Field(default_factory=list)
    """Identities of the dependencies: ``name_hash``, or ``name@version`` of lazy artifacts."""
    dep_paths: list[str] = Field(default_factory=list)
    """Output paths of the dependencies, in the same order."""
    config: dict[str, Any] | None = None
    """The step's attributes."""
    source: str | None = None
    """Where adopted data is."""
    result: dict[str, Any] | None = None
    """What the function returned."""
    fingerprint_payload: str | None = None
    provenance: AnyProvenance | None = None

    def typed_result(self, model: type[M], *, where: str) -> M:
        """``result`` validated as a pydantic model.

        Args:
            model: what to validate as.
            where: step and path, for the error.

        Raises:
            OutputNotReadyError: the record has no result, or one that does not fit the model.
        """
        if self.result is None:
            raise OutputNotReadyError(
                f"{where}: its record has no result to load as {model.__name__}. Let the step's "
                "function return it, and rebuild."
            )
        try:
            # Marin's types expect this context when they are loaded from a record.
            return model.model_validate(
                self.result, context={"artifact_load": True}, by_alias=True, by_name=True
            )
        except ValidationError as error:
            raise OutputNotReadyError(
                f"{where}: the recorded result is not a valid {model.__name__}: {error}"
            ) from error


_MOST_OF_FAULT = 500
"""Characters of a validation error that a message shows."""

_MOST_OF_FUNCTION = 1000
"""Characters of a function's text in ``.executor_info``."""

_IDENTITY_FIELDS = ("name", "fingerprint", "result_type", "result")


def read_record(folder: OutputDir) -> ArtifactRecord | None:
    """The record of an output, in its own or an older form; None when it has none.

    Raises:
        RecordError: there is one, but it cannot be read.
        StoreError: the store refused.
    """
    content = folder.read(RECORD_FILE)
    if content is not None:
        return _parse_record(_parse_object(content, folder, RECORD_FILE), folder)
    content = folder.read(INFO_FILE)
    if content is not None:
        return _parse_info(_parse_object(content, folder, INFO_FILE), folder)
    return None


def write_record(folder: OutputDir, record: ArtifactRecord) -> None:
    """Write the record of an output.

    Raises:
        StoreError: the store refused; an earlier record stays.
    """
    folder.write(RECORD_FILE, record.model_dump_json(indent=2).encode())


def step_record(
    step: StepLike, result: Any, provenance: Provenance | None = None
) -> ArtifactRecord:
    """The record of a step that has just returned ``result``.

    Args:
        step: the step.
        result: what its function returned.
        provenance: of the build; this process's when None.

    Raises:
        ResultError: a record cannot hold the result.
    """
    return ArtifactRecord(
        name=step.name,
        output_path=step.output_path,
        deps=list(step.dep_names),
        dep_paths=list(step.dep_paths),
        config=_as_json(step.hash_attrs),
        result=result_payload(step, result),
        fingerprint_payload=step.fingerprint_payload,
        provenance=provenance or launch_provenance(),
    )


def restate_provenance(
    folder: OutputDir, record: ArtifactRecord, run: RunIdentity | None
) -> ArtifactRecord:
    """Correct the provenance in a record that the step's function has written.

    Marin's functions record the command line of the process that lowered them; in a run worker it
    contains the configuration of the instance. The rest of the file stays as it is.

    Args:
        folder: the output.
        record: what was read there.
        run: the Dagster run that has built it.

    Returns:
        The record as it is now.

    Raises:
        StoreError: the store refused.
    """
    written = record.provenance
    if written is None:
        return record
    stated = written.scrubbed()
    if run is not None and not isinstance(written, RunProvenance):
        stated = stated.in_run(run)
    if stated == written:
        return record
    document = json.loads(folder.read(RECORD_FILE) or b"{}")
    document["provenance"] = dataclasses.asdict(stated)
    folder.write(RECORD_FILE, json.dumps(document, indent=2, ensure_ascii=False).encode())
    return record.model_copy(update={"provenance": stated})


def as_recorded(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """A step's attributes as they come back from its record, where NaN and infinity are null."""
    document: dict[str, Any] = json.loads(json.dumps(dict(attrs)), parse_constant=lambda _: None)
    return document


def _as_json(attrs: Mapping[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(dict(attrs)))
    return document


class _Named(Protocol):
    """The fields of a step that an error names."""

    @property
    def name_with_hash(self) -> str: ...
    @property
    def output_path(self) -> str: ...


def result_payload(step: _Named, result: Any) -> dict[str, Any] | None:
    """A function's return value as a record holds it, in JSON.

    Dictionaries, dataclasses and pydantic models are kept, as in Marin; numbers of numpy and other
    array libraries inside them become plain numbers.

    Raises:
        ResultError: the value is something else, or holds something that JSON cannot.
    """
    if result is None:
        return None
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        kind = "async" if inspect.iscoroutine(result) else "a generator"
        result.close()
        raise _result_error(step, f"its function is {kind}, so its body never ran")
    try:
        payload = _to_json(result)
    except (ValueError, TypeError, RecursionError) as error:
        try:
            fault = _result_fault(result, "result")
        except RecursionError:
            fault = None
        raise _result_error(step, fault or f"result: {error}") from error
    if not isinstance(payload, dict):
        raise _result_error(step, f"it returned {shown(result)}, a {type(result).__name__}")
    return payload


def write_info(folder: OutputDir, step: StepLike) -> bool:
    """Write ``.executor_info`` as Marin's scheduler does; an existing one is never overwritten.

    Returns:
        Whether there was none, so that this attempt is the first.
    """
    if folder.read(INFO_FILE) is not None:
        return False
    info: Mapping[str, Any] = {
        "executor_version": _SCHEDULER_INFO,
        "name": step.name,
        "fn_name": _function_text(step.fn),
        "config": dict(step.hash_attrs),
        "description": None,
        "override_output_path": step.override_output_path,
        "version": {},
        "dependencies": list(step.dep_paths),
        "output_path": step.output_path,
    }
    folder.write(INFO_FILE, json.dumps(info, indent=2).encode())
    return True


def _function_text(function: Any) -> str:
    """The function as text, as Marin records it, but scrubbed and cut to 1,000 characters.

    A partial shows its arguments, so the text can be long, hold credentials, or fail.
    """
    try:
        text = str(function)
    except Exception:
        text = type(function).__name__
    # Half a credential is not recognised as one, so the scrubbed text ends far beyond the cut. All
    # of a long text would take too long.
    return scrub(text[: 10 * _MOST_OF_FUNCTION])[:_MOST_OF_FUNCTION]


def _parse_object(content: bytes, folder: OutputDir, name: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
        if not isinstance(document, dict):
            raise ValueError(f"it holds a {type(document).__name__}, not an object")
    except (ValueError, RecursionError) as error:
        raise _unreadable(folder, name, error) from error
    return document


def _parse_record(document: dict[str, Any], folder: OutputDir) -> ArtifactRecord:
    try:
        record = ArtifactRecord.model_validate(document)
    except ValidationError as error:
        raise _unreadable(folder, RECORD_FILE, error) from error
    bare = not any(getattr(record, name) for name in _IDENTITY_FIELDS)
    if bare and document.keys() - ArtifactRecord.model_fields.keys():
        return ArtifactRecord(result=document)
    return record


def _parse_info(info: dict[str, Any], folder: OutputDir) -> ArtifactRecord | None:
    if info.get("executor_version") == _SCHEDULER_INFO:
        return None
    fields = {
        "name": info.get("name") or "",
        "config": info.get("config"),
        "output_path": info.get("output_path") or "",
        "deps": info.get("dependencies") or [],
    }
    try:
        return ArtifactRecord.model_validate(fields)
    except ValidationError as error:
        raise _unreadable(folder, INFO_FILE, error) from error


def _unreadable(folder: OutputDir, name: str, error: Exception) -> RecordError:
    # Pydantic lists every invalid field; the first ones are enough.
    fault = str(error)
    fault = fault if len(fault) <= _MOST_OF_FAULT else fault[:_MOST_OF_FAULT] + "…"
    return RecordError(
        f"the record {join(folder.url, name)} cannot be read: {fault}. Restore it, or delete the "
        f"output's .executor_status and run the step again."
    )


def _result_error(step: _Named, fault: str) -> ResultError:
    return ResultError(
        f"step {step.name_with_hash}: {fault}. A record holds JSON: return None, a dictionary, a "
        "dataclass or a pydantic model, and write everything else to a file in "
        f"{step.output_path}."
    )


def _to_json(value: Any) -> Any:
    plain = to_jsonable_python(value, fallback=_plain_number, by_alias=False)
    json.dumps(plain, ensure_ascii=False).encode()  # fails for text that UTF-8 cannot encode
    return plain


def _result_fault(value: Any, path: str) -> str | None:
    """``"<path>: <why>"`` for the first part of a result that JSON cannot hold."""
    if isinstance(value, BaseModel):
        value = dict(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        children = [(f"{path}.{key}", child) for key, child in value.items()]
    elif isinstance(value, (list, tuple)):
        children = [(f"{path}[{index}]", child) for index, child in enumerate(value)]
    else:
        try:
            _to_json(value)
        except (ValueError, TypeError, RecursionError) as error:
            return f"{path}: {error}"
        return None
    return next((fault for at, child in children if (fault := _result_fault(child, at))), None)


def _plain_number(value: Any) -> Any:
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return value.item()
    raise TypeError(f"{shown(value)} is a {type(value).__name__}")
