"""``StepCall``: what a worker of an engine runs, and the traces that it leaves beside the output.

The worker calls the function and writes the record, or ``.step_error.json`` when the function
raises, since engines cut or lose tracebacks. The lease and the status stay with the driver, but for
one thing: the worker withdraws a finished output, right before the function overwrites it. This
module is all that a worker needs; it imports neither Dagster nor an engine.
"""

import importlib
import json
import os
import pickle
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from marin_dagster.cache import Attempt, OutputDir
from marin_dagster.cache.record import (
    RECORD_FILE,
    ArtifactRecord,
    result_payload,
    step_record,
    write_record,
)
from marin_dagster.cache.status import Status, read_status, write_status
from marin_dagster.errors import RunnerError, StepWithoutFunctionError
from marin_dagster.runners.job_log_levels import logging_at
from marin_dagster.runners.pickle_by_value import pickle_by_value
from marin_dagster.steps.protocol import address
from marin_dagster.steps.remote import step_function

ERROR_FILE = ".step_error.json"

RANK_VARIABLES = ("SLURM_PROCID", "IRIS_TASK_ID")
"""Where engines tell a job's ranks apart: ``3``, and ``/user/job/3:0`` (its first attempt)."""
_LONGEST_TEXT = 100_000


@dataclass(frozen=True)
class StepCall:
    """One attempt at a step, without the graph above it."""

    function: Callable[[str], Any]
    """Called with the output path."""
    name_with_hash: str
    """The step as messages call it: see :func:`address`."""
    output_path: str
    job: str
    """The job's name; marks the error file, so that an old one is not mistaken for it."""
    record: ArtifactRecord | None
    """The record but for the result; None when the function writes its own."""
    describers: Mapping[str, str] = field(default_factory=dict)
    """Who can put exceptions of a package into JSON, so that they mean the same to the driver as in
    its own process: the package, and the module whose ``describe(error)`` does it. Imported only
    when a function has raised such an exception."""
    rebuilds: bool = False
    """There is a finished output, which the function is about to overwrite."""
    log_levels: Mapping[str, int] = field(default_factory=dict)
    """The lowest level of Python's loggers in the job, by name; ``""`` is the root logger."""

    @classmethod
    def of(
        cls,
        attempt: Attempt,
        job: str,
        describers: Mapping[str, str] | None = None,
        log_levels: Mapping[str, int] | None = None,
    ) -> "StepCall":
        """The call for an open attempt; the mappings are those of the call.

        Raises:
            StepWithoutFunctionError: the step has no function.
        """
        step = attempt.step
        function = step_function(step)
        if function is None:
            raise StepWithoutFunctionError(f"step {address(step)} has no function")
        record = None if step.writes_record else step_record(step, None, attempt.provenance)
        place = address(step), step.output_path, job
        return cls(
            function,
            *place,
            record,
            describers or {},
            rebuilds=attempt.stands,
            log_levels=dict(log_levels or {}),
        )


@dataclass(frozen=True)
class StepFault:
    """What a worker wrote about an exception of the step's function."""

    job: str
    type: str
    message: str
    traceback: str
    details: Any = None
    """What :attr:`StepCall.describers` made of the exception."""


def pack(call: StepCall) -> bytes:
    """The call in a form that a worker can run: :func:`run_packed`.

    Functions and classes from modules that a worker could not import, such as the code location's
    own files, travel by value.

    Raises:
        RunnerError: something that the function holds cannot be pickled.
    """
    try:
        function_and_record = pickle_by_value(call)
    except Exception as error:
        raise RunnerError(
            f"step {call.name_with_hash}: its function cannot be sent to a worker: "
            f"{type(error).__name__}: {error}. Open files, locks and connections inside the "
            "function instead of holding them in it."
        ) from error
    return pickle.dumps((call.output_path, call.job, function_and_record))


def run_packed(packed: bytes) -> None:
    """Run a packed call: what a worker does. Leaves the record, or the error file.

    With several ranks, each calls the function and the first writes the record.

    Raises:
        SystemExit: with code 1 when the call failed; the traceback is on stderr.
    """
    # First where the output is, so that there is a place for the fault of loading the rest.
    output_path, job, function_and_record = pickle.loads(packed)
    folder = OutputDir.at(output_path)
    describers: Mapping[str, str] = {}
    try:
        call = pickle.loads(function_and_record)
        describers = call.describers
        _run(folder, call)
    except BaseException as error:
        _make_room()
        if error.__traceback__ is not None:  # without the lines here: people look for their own
            error = error.with_traceback(_below_here(error.__traceback__))
        details = None
        with _said_on_stderr():
            details = _describe(error, describers)
        with _said_on_stderr():
            _write_fault(folder, job, error, details)
        with _said_on_stderr():
            traceback.print_exception(error)
        raise SystemExit(1) from None


def _run(folder: OutputDir, call: StepCall) -> None:
    if call.rebuilds:
        withdraw(folder)
    with logging_at(call.log_levels):
        result = call.function(call.output_path)
    if call.record is not None and _rank() == 0:
        payload = result_payload(call, result)
        write_record(folder, call.record.model_copy(update={"result": payload}))


def read_fault(folder: OutputDir, job: str) -> StepFault | None:
    """What a job wrote about its failure; None when it wrote nothing that can be read.

    Raises:
        StoreError: the store refused.
    """
    content = folder.read(ERROR_FILE)
    try:
        fields = json.loads(content or b"")
        texts = {name: str(fields[name]) for name in ("job", "type", "message", "traceback")}
        fault = StepFault(**texts, details=fields.get("details"))
    except (ValueError, TypeError, KeyError):
        return None
    return fault if fault.job == job else None


def withdraw(folder: OutputDir) -> None:
    """Take SUCCESS and the record back from a finished output, right before it is overwritten.

    In this order, so that a worker that dies here leaves nothing that is served without a record.
    With several ranks, each sees to the status, and the first, which writes the record, to that.

    Raises:
        StoreError: the store refused.
    """
    if read_status(folder) is Status.SUCCESS:
        write_status(folder, Status.RUNNING)
    if _rank() == 0:
        forget_record(folder)


def forget_record(folder: OutputDir) -> None:
    """Remove the record of earlier attempts: from then on one means that the function has ended.

    Raises:
        StoreError: the store refused.
    """
    _forget(folder, RECORD_FILE)


def forget_fault(folder: OutputDir) -> None:
    """Remove what an earlier job wrote about its failure.

    Raises:
        StoreError: the store refused.
    """
    _forget(folder, ERROR_FILE)


def _forget(folder: OutputDir, name: str) -> None:
    # Not every worker may delete, and mostly there is nothing.
    if folder.read(name) is not None:
        folder.delete(name)


def _write_fault(folder: OutputDir, job: str, error: BaseException, details: Any) -> None:
    try:
        message = str(error)
    except Exception as broken:
        message = f"(its message cannot be shown: {type(broken).__name__})"
    out_of_memory = isinstance(error, MemoryError)
    fault = {
        "job": job,
        # Array libraries have a MemoryError of their own.
        "type": "MemoryError" if out_of_memory else type(error).__qualname__,
        "message": message[:_LONGEST_TEXT],
        # The end says most.
        "traceback": "".join(traceback.format_exception(error))[-_LONGEST_TEXT:],
        "details": details,
    }
    folder.write(ERROR_FILE, json.dumps(fault).encode())


def _describe(error: BaseException, describers: Mapping[str, str]) -> Any:
    """What the package that the exception's class comes from, or a base's, has to say about it."""
    for kind in type(error).__mro__:
        module = describers.get(kind.__module__.partition(".")[0])
        if module is not None:
            # Through JSON, so that what it cannot hold shows here and does not cost the fault file.
            return json.loads(json.dumps(importlib.import_module(module).describe(error)))
    return None


def _below_here(trace: types.TracebackType) -> types.TracebackType:
    """The part of a traceback that is not of this file."""
    below: types.TracebackType | None = trace
    while below is not None and below.tb_frame.f_code.co_filename == __file__:
        below = below.tb_next
    return below or trace


def _make_room() -> None:
    """Let a process that has reached its memory limit write down what has happened."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _rank() -> int:
    told = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0")
    return int(told.rpartition("/")[2].partition(":")[0])


@contextmanager
def _said_on_stderr() -> Iterator[None]:
    try:
        yield
    except Exception:
        with suppress(Exception):  # the function may have closed it
            traceback.print_exc()
