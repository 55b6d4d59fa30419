"""What travels to a worker, and what the worker leaves behind."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from marin_dagster import StepSpec
from marin_dagster.cache import Attempt, OutputDir, StepCache, read_record
from marin_dagster.errors import RunnerError, StepWithoutFunctionError
from marin_dagster.runners import Request, StepCall, pack, run_packed
from marin_dagster.runners.base import JOB_NAME_LENGTH, job_name
from marin_dagster.runners.payload import read_fault

WORKER = (
    "import sys; from marin_dagster.runners import run_packed; run_packed(sys.stdin.buffer.read())"
)


def begin(step: StepSpec) -> Attempt:
    attempt = StepCache().begin(step)
    assert isinstance(attempt, Attempt)
    return attempt


def call_of(fn: Callable[[str], Any], **fields: Any) -> StepCall:
    attempt = begin(StepSpec("step", fn=fn, **fields))
    attempt.fail()
    return StepCall.of(attempt, "job-1")


def run_elsewhere(call: StepCall, **environment: str) -> "subprocess.CompletedProcess[str]":
    """In a new process, outside this folder, as a worker does."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=pack(call),
        env={"PYTHONPATH": "", "PATH": "", **environment},
        cwd="/",
        capture_output=True,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def result_of(call: StepCall) -> dict[str, Any] | None:
    record = read_record(OutputDir.at(call.output_path))
    return record.result if record else None


def load_location(folder: Path, source: str) -> ModuleType:
    """A module loaded from a file, as a code location is."""
    file = folder / "own_location.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("own_location", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_location"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def location(tmp_path: Path) -> Any:
    yield lambda source: load_location(tmp_path, source)
    sys.modules.pop("own_location", None)


def test_functions_of_a_file_that_the_worker_cannot_import_travel_by_value(location: Any) -> None:
    module = location(
        "from dataclasses import dataclass\n"
        "FACTOR = 2\n"
        "@dataclass\n"
        "class Size:\n"
        "    rows: int\n"
        "def helper(n):\n"
        "    return n * FACTOR\n"
        "def build(output_path):\n"
        "    return Size(helper(21))\n"
    )
    call = call_of(module.build)

    done = run_elsewhere(call)

    assert done.returncode == 0, done.stderr
    assert result_of(call) == {"rows": 42}


def test_a_traceback_names_the_file_of_such_a_function(location: Any) -> None:
    module = location("def build(output_path):\n    return 1 / 0\n")
    call = call_of(module.build)

    done = run_elsewhere(call)

    assert done.returncode == 1
    fault = read_fault(OutputDir.at(call.output_path), "job-1")
    assert fault is not None
    assert (fault.type, fault.message) == ("ZeroDivisionError", "division by zero")
    assert 'own_location.py", line 2, in build' in fault.traceback
    assert "payload.py" not in fault.traceback
    assert "ZeroDivisionError" in done.stderr


class Size(BaseModel):
    rows: int


def test_closures_lambdas_and_models_travel() -> None:
    rows = 3
    call = call_of(lambda _: Size(rows=rows))

    assert run_elsewhere(call).returncode == 0
    assert result_of(call) == {"rows": 3}


def test_modules_that_are_installed_travel_by_name() -> None:
    import pydantic_core

    call = call_of(lambda _: {"version": pydantic_core.__version__})

    assert len(pack(call)) < 20_000
    assert run_elsewhere(call).returncode == 0


def test_eight_threads_pack_at_once(location: Any) -> None:
    module = location("def build(output_path):\n    return {'a': 1}\n")
    call = call_of(module.build)
    packed = []
    threads = [threading.Thread(target=lambda: packed.append(pack(call))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(packed)) == 1
    assert b"helper" not in packed[0]
    assert run_elsewhere(call).returncode == 0


def test_what_cannot_travel_is_said_with_the_step() -> None:
    lock = threading.Lock()

    with pytest.raises(RunnerError, match=r"step_\w+: its function cannot be sent .* lock"):
        pack(call_of(lambda _: lock))


def test_a_result_that_no_record_holds_is_a_fault() -> None:
    call = call_of(lambda _: {"x": object()})

    assert run_elsewhere(call).returncode == 1
    fault = read_fault(OutputDir.at(call.output_path), "job-1")
    assert fault is not None
    assert fault.type == "ResultError"
    assert call.output_path in fault.message
    assert result_of(call) is None


def raise_decimal_error(output_path: str) -> None:
    """Raises what derives from an exception of a package, and is in none itself."""
    import decimal

    class Own(decimal.InvalidOperation):
        """As people derive their own."""

    raise Own("no number")


@pytest.mark.parametrize(
    ("body", "details"),
    [
        ("return {'kind': type(error).__name__}", {"kind": "Own"}),
        ("return None", None),
        ("return object()", None),
        ("raise RuntimeError('no words')", None),
    ],
)
def test_a_describer_puts_exceptions_of_its_package_into_the_fault(
    body: str, details: Any, tmp_path: Path
) -> None:
    tmp_path.joinpath("describing_decimals.py").write_text(f"def describe(error): {body}\n")
    call = replace(
        call_of(raise_decimal_error),
        describers={"decimal": "describing_decimals", "json": "not_imported_for_others"},
    )

    assert run_elsewhere(call, PYTHONPATH=str(tmp_path)).returncode == 1

    fault = read_fault(OutputDir.at(call.output_path), "job-1")
    assert fault is not None
    assert (fault.message, fault.details) == ("no number", details)


def test_a_fault_of_another_job_is_not_this_ones() -> None:
    call = call_of(lambda _: 1 / 0)
    run_elsewhere(call)

    assert read_fault(OutputDir.at(call.output_path), "job-2") is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"job": "job-1"}'])
def test_a_broken_error_file_is_none(content: str, tmp_path: Path) -> None:
    tmp_path.joinpath(".step_error.json").write_text(content)

    assert read_fault(OutputDir.at(str(tmp_path)), "job-1") is None


def test_a_long_traceback_keeps_its_end() -> None:
    def build(output_path: str) -> None:
        raise ValueError("x" * 300_000 + "the end")

    call = call_of(build)
    run_elsewhere(call)

    file = Path(call.output_path, ".step_error.json")
    assert file.stat().st_size < 300_000
    assert json.loads(file.read_text())["traceback"].rstrip().endswith("the end")


def test_an_error_that_cannot_be_written_down_is_on_stderr(tmp_path: Path) -> None:
    # A file where the output's folder should be.
    blocker = tmp_path / "blocker"

    def build(output_path: str) -> None:
        import shutil

        shutil.rmtree(output_path)
        blocker.write_text("")
        Path(output_path).symlink_to(blocker)
        raise ValueError("the real reason")

    done = run_elsewhere(call_of(build))

    assert done.returncode == 1
    assert "the real reason" in done.stderr


def close_stderr() -> None:
    sys.stderr.close()


@pytest.mark.parametrize("how", [close_stderr, lambda: os.close(2)], ids=["closed", "no file"])
def test_an_error_is_written_down_although_stderr_is_unusable(how: Callable[[], None]) -> None:
    def build(output_path: str) -> None:
        how()
        raise LookupError("no such corpus")

    call = call_of(build)

    assert run_elsewhere(call).returncode != 0
    fault = read_fault(OutputDir.at(call.output_path), "job-1")
    assert fault is not None
    assert fault.message == "no such corpus"


def test_an_error_whose_message_cannot_be_shown_is_written_down() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def build(output_path: str) -> None:
        raise Odd

    call = call_of(build)

    assert run_elsewhere(call).returncode == 1
    fault = read_fault(OutputDir.at(call.output_path), "job-1")
    assert fault is not None
    assert "Odd" in fault.type
    assert "cannot be shown" in fault.message


def test_a_function_that_cannot_be_loaded_is_a_fault() -> None:
    class Unloadable:
        def __reduce__(self) -> Any:
            return (int, ("no number",))

    unloadable = Unloadable()
    call = call_of(lambda _: {"odd": str(unloadable)})

    assert run_elsewhere(call).returncode == 1
    fault = read_fault(OutputDir.at(call.output_path), "job-1")
    assert fault is not None
    assert "no number" in fault.message


def test_cached_functions_of_such_a_file_travel_by_value(location: Any) -> None:
    module = location(
        "from functools import cache, lru_cache\n"
        "@lru_cache(maxsize=3)\n"
        "def double(n):\n"
        "    return 2 * n\n"
        "@cache\n"
        "def build(output_path):\n"
        "    return {'n': double(21), 'size': double.cache_parameters()['maxsize']}\n"
    )
    call = call_of(module.build)

    done = run_elsewhere(call)

    assert done.returncode == 0, done.stderr
    assert result_of(call) == {"n": 42, "size": 3}


@pytest.mark.parametrize(
    ("variable", "first", "second"),
    [("SLURM_PROCID", "0", "1"), ("IRIS_TASK_ID", "/me/parent/job/0:2", "/me/parent/job/1:0")],
)
def test_of_several_ranks_the_first_writes_the_record(
    variable: str, first: str, second: str
) -> None:
    call = call_of(lambda _: {"rank": os.environ[variable]})

    assert run_elsewhere(call, **{variable: second}).returncode == 0
    assert result_of(call) is None
    assert run_elsewhere(call, **{variable: first}).returncode == 0
    assert result_of(call) == {"rank": first}


def test_a_step_that_writes_its_own_record_keeps_it() -> None:
    def build(output_path: str) -> None:
        Path(output_path, ".artifact.json").write_text('{"name": "mine"}')

    call = call_of(build, writes_record=True)

    assert run_elsewhere(call).returncode == 0
    record = read_record(OutputDir.at(call.output_path))
    assert record is not None
    assert record.name == "mine"


def test_a_step_without_a_function_has_no_call() -> None:
    attempt = begin(StepSpec("step", fn=lambda _: None))
    attempt.fail()
    attempt.step = StepSpec("step")  # type: ignore[misc]

    with pytest.raises(StepWithoutFunctionError):
        StepCall.of(attempt, "job-1")


def test_running_here_leaves_by_an_exit_code() -> None:
    with pytest.raises(SystemExit) as left:
        run_packed(pack(call_of(lambda _: 1 / 0)))

    assert left.value.code == 1


def test_a_job_is_named_after_step_hash_and_attempt() -> None:
    step = StepSpec("Train/Größe 7B")

    assert job_name(step, Request(), "0123abcd") == f"train-gr-e-7b-{step.hash_id}-0123abcd"
    assert job_name(step, Request(name="Mine"), "0123abcd") == f"mine-{step.hash_id}-0123abcd"


def test_a_long_name_is_cut_and_what_tells_attempts_apart_stays() -> None:
    step = StepSpec("a" * 40 + "-" + "b" * 200)

    name = job_name(step, Request(), "0123abcd")

    assert len(name) <= JOB_NAME_LENGTH
    assert name.endswith(f"-{step.hash_id}-0123abcd")
