"""``StepCall``: what a worker of an engine runs, and the files that it writes beside the output.

The worker calls the function and writes the record, or ``.step_error.json`` if the function raises,
since engines cut or lose tracebacks. The driver keeps the lease and the status, with one exception:
the worker withdraws a finished output right before the function overwrites it. A worker needs this
module only; it imports neither Dagster nor an engine.
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
from marin_dagster.runners.logging_setup import logging_at
from marin_dagster.runners.output_reads import ReadScope, noting_reads, write_reads
from marin_dagster.runners.pickle_by_value import pickle_by_value
from marin_dagster.steps.protocol import address
from marin_dagster.steps.remote import step_function

ERROR_FILE = ".step_error.json"

RANK_VARIABLES = ("SLURM_PROCID", "IRIS_TASK_ID")
"""Environment variables with a job's rank: ``3``, or ``/user/job/3:0`` (its first attempt)."""
_LONGEST_TEXT = 100_000


@dataclass(frozen=True)
class StepCall:
    """One attempt at a step, without the graph above it."""

    function: Callable[[str], Any]
    """Called with the output path."""
    name_with_hash: str
    """The step's name in messages; see :func:`address`."""
    output_path: str
    job: str
    """The job's name. The error file has it, so that an older job's file is not mistaken for it."""
    record: ArtifactRecord | None
    """The record without the result; None if the function writes its own."""
    describers: Mapping[str, str] = field(default_factory=dict)
    """Modules that can describe a package's exceptions to the driver, by package. The module's
    ``describe(error)`` returns JSON; it is imported only after such an exception."""
    rebuilds: bool = False
    """Whether the function is about to overwrite a finished output."""
    log_levels: Mapping[str, int] = field(default_factory=dict)
    """The lowest level of Python's loggers in the job, by name; ``""`` is the root logger."""
    reads: ReadScope | None = None
    """Where to look for outputs that the function reads; None for nowhere."""

    @classmethod
    def of(
        cls,
        attempt: Attempt,
        job: str,
        describers: Mapping[str, str] | None = None,
        log_levels: Mapping[str, int] | None = None,
        reads: ReadScope | None = None,
    ) -> "StepCall":
        """The call for an open attempt.

        Raises:
            StepWithoutFunctionError: the step has no function.
        """
        step = attempt.step
        function = step_function(step)
        if function is None:
            raise StepWithoutFunctionError(f"step {address(step)} has no function")
        return cls(
            function=function,
            name_with_hash=address(step),
            output_path=step.output_path,
            job=job,
            record=None if step.writes_record else step_record(step, None, attempt.provenance),
            describers=describers or {},
            rebuilds=attempt.stands,
            log_levels=log_levels or {},
            reads=reads,
        )


@dataclass(frozen=True)
class StepFault:
    """A worker's report of an exception in the step's function: ``.step_error.json``."""

    job: str
    type: str
    message: str
    traceback: str
    details: Any = None
    """The exception's description by :attr:`StepCall.describers`."""


def pack(call: StepCall) -> bytes:
    """The call as bytes for :func:`run_packed`.

    Functions and classes from modules that a worker cannot import, such as the code location's own
    files, are pickled by value.

    Raises:
        RunnerError: a value that the function holds cannot be pickled.
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
    """Run a packed call in a worker, and write the record or the error file.

    With several ranks, each calls the function, and the first writes the record.

    Raises:
        SystemExit: with code 1 if the call failed; the traceback is on stderr.
    """
    # The output path first, so that an error in unpickling the rest can be written there.
    output_path, job, function_and_record = pickle.loads(packed)
    folder = OutputDir.at(output_path)
    describers: Mapping[str, str] = {}
    try:
        call = pickle.loads(function_and_record)
        describers = call.describers
        _run(folder, call)
    except BaseException as error:
        _lift_memory_limit()
        if error.__traceback__ is not None:  # people look for their own lines
            error = error.with_traceback(_outside_this_file(error.__traceback__))
        details = None
        with _errors_to_stderr():
            details = _describe(error, describers)
        with _errors_to_stderr():
            _write_fault(folder, job, error, details)
        with _errors_to_stderr():
            traceback.print_exception(error)
        raise SystemExit(1) from None


def _run(folder: OutputDir, call: StepCall) -> None:
    if call.rebuilds:
        withdraw(folder)
    with logging_at(call.log_levels), noting_reads(call.reads, whole_process=True) as reads:
        result = call.function(call.output_path)
    if _rank() == 0:
        # Before the record, which means that the function has ended.
        write_reads(folder, call.job, reads)
    if call.record is not None and _rank() == 0:
        payload = result_payload(call, result)
        write_record(folder, call.record.model_copy(update={"result": payload}))


def read_fault(folder: OutputDir, job: str) -> StepFault | None:
    """A job's report of its failure; None if there is none, or it cannot be read.

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
    """Remove SUCCESS and then the record of a finished output, right before it is overwritten.

    In this order, so that no output is served without a record if the worker dies in between. With
    several ranks, each withdraws the status, and only the first, which writes the record, removes
    it.

    Raises:
        StoreError: the store refused.
    """
    if read_status(folder) is Status.SUCCESS:
        write_status(folder, Status.RUNNING)
    if _rank() == 0:
        forget_record(folder)


def forget_record(folder: OutputDir) -> None:
    """Remove the record of earlier attempts: the next record means that the function has ended.

    Raises:
        StoreError: the store refused.
    """
    _forget(folder, RECORD_FILE)


def forget_fault(folder: OutputDir) -> None:
    """Remove an earlier job's report of its failure.

    Raises:
        StoreError: the store refused.
    """
    _forget(folder, ERROR_FILE)


def _forget(folder: OutputDir, name: str) -> None:
    # Read first: some workers may not delete, and usually there is no such file.
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
        # The end is the most useful part.
        "traceback": "".join(traceback.format_exception(error))[-_LONGEST_TEXT:],
        "details": details,
    }
    folder.write(ERROR_FILE, json.dumps(fault).encode())


def _describe(error: BaseException, describers: Mapping[str, str]) -> Any:
    """The exception's description by the describer of its class's package, or a base class's."""
    for kind in type(error).__mro__:
        module = describers.get(kind.__module__.partition(".")[0])
        if module is not None:
            # Through JSON here: a value that JSON cannot hold must not prevent the error file.
            return json.loads(json.dumps(importlib.import_module(module).describe(error)))
    return None


def _outside_this_file(trace: types.TracebackType) -> types.TracebackType:
    """A traceback without the frames of this file at its top."""
    below: types.TracebackType | None = trace
    while below is not None and below.tb_frame.f_code.co_filename == __file__:
        below = below.tb_next
    return below or trace


def _lift_memory_limit() -> None:
    """Let a process that has reached its memory limit write the error file."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _rank() -> int:
    rank = next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0")
    return int(rank.rpartition("/")[2].partition(":")[0])


@contextmanager
def _errors_to_stderr() -> Iterator[None]:
    """Print an exception of the body instead of raising it."""
    try:
        yield
    except Exception:
        with suppress(Exception):  # the function may have closed it
            traceback.print_exc()
