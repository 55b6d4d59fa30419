"""What happens when a step's function reads an output on which its step does not depend."""

import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import fsspec
import numpy
import pytest

from helpers.runs import metadata_of, run_job, status_of
from marin_dagster import ResourceConfig, StepRunner, StepsFailedError, StepSpec, build_definitions
from marin_dagster.errors import UndeclaredDependencyError, UndeclaredInputsError

KEY = "marin/undeclared_inputs"


def write(output_path: str) -> None:
    for name in ("data.txt", "more.txt"):
        Path(output_path, name).write_text("old")
    numpy.save(Path(output_path, "data.npy"), numpy.zeros(2))
    Path(output_path, "inner").mkdir(exist_ok=True)
    Path(output_path, "inner", "data.txt").write_text("old")


def undeclared(name: str) -> Path:
    """The output of a step, in a way that loading the graph cannot show."""
    [folder] = Path(os.environ["MARIN_PREFIX"]).glob(f"{name}_*")
    return folder


def in_thread(read: Callable[[], Any]) -> None:
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()


def in_pool(read: Callable[[], Any]) -> None:
    with ThreadPoolExecutor() as pool:
        pool.submit(read).result()


def by_descriptor(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.read(descriptor, 1)
    os.close(descriptor)


def relative(path: Path) -> None:
    Path(os.path.relpath(path)).read_text()


def through_link(path: Path) -> None:
    link = Path(os.environ["MARIN_PREFIX"], "..", f"link-{os.getpid()}-{id(path)}").resolve()
    link.symlink_to(path.parent)
    (link / path.name).read_text()


def by_fsspec(path: Path) -> None:
    with fsspec.open(f"file://{path}", "rb") as file:
        file.read()


def read(path: Any, mode: str = "r") -> None:
    with open(path, mode) as file:
        if "+" in mode or mode == "r":
            file.read()


WAYS: dict[str, Callable[[], Any]] = {
    "open": lambda: read(undeclared("raw") / "data.txt"),
    "bytes": lambda: read(os.fsencode(undeclared("raw") / "data.txt")),
    "pathlib": lambda: (undeclared("raw") / "inner" / "data.txt").read_text(),
    "os.open": lambda: by_descriptor(undeclared("raw") / "data.txt"),
    "both": lambda: read(undeclared("raw") / "data.txt", "r+"),
    "dots": lambda: read(f"{undeclared('raw')}/inner/../data.txt"),
    "relative": lambda: relative(undeclared("raw") / "data.txt"),
    "link": lambda: through_link(undeclared("raw") / "data.txt"),
    "copy": lambda: shutil.copytree(undeclared("raw"), undeclared("raw").parent / "copy-of-raw"),
    "numpy": lambda: numpy.load(undeclared("raw") / "data.npy"),
    "fsspec": lambda: by_fsspec(undeclared("raw") / "data.txt"),
    "thread": lambda: in_thread(WAYS["open"]),
    "pool": lambda: in_pool(WAYS["open"]),
    "record": lambda: (undeclared("raw") / ".artifact.json").read_text(),
}

UNSEEN: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "write": lambda: read(undeclared("raw") / "data.txt", "w"),
    "append": lambda: read(undeclared("raw") / "data.txt", "a"),
    "truncate": lambda: read(undeclared("raw") / "data.txt", "w+"),
    "status": lambda: (undeclared("raw") / ".executor_status").read_text(),
    "no output": lambda: (Path(os.environ["MARIN_PREFIX"]) / "notes.txt").read_text(),
    "outside": lambda: Path(__file__).read_text(),
    "child": lambda: subprocess.run(["cat", str(undeclared("raw") / "data.txt")], check=True),
    "descriptor": lambda: os.fdopen(os.dup(0)).close(),
}


@pytest.fixture(autouse=True)
def notes() -> None:
    prefix = Path(os.environ["MARIN_PREFIX"])
    prefix.mkdir(parents=True, exist_ok=True)
    (prefix / "notes.txt").write_text("no output")


def steps(
    reading: Callable[[], Any], *, on: str, reader_deps: tuple[str, ...] = ()
) -> dict[str, StepSpec]:
    """``raw``, ``middle`` that reads it, and a step ``reader`` that reads what it likes."""
    resources = ResourceConfig() if on == "process" else None
    raw = StepSpec("raw", fn=write)
    middle = StepSpec("middle", fn=write, deps=[raw])
    found = {"raw": raw, "middle": middle}

    def fn(output_path: str) -> None:
        Path(output_path, "data.txt").write_text("made")
        Path(output_path, "data.txt").read_text()
        reading()

    deps = [found[name] for name in reader_deps]
    return found | {"reader": StepSpec("reader", deps=deps, fn=fn, resources=resources)}


def run_reader(
    made: dict[str, StepSpec], instance: dg.DagsterInstance, *, strict: bool = False
) -> Any:
    definitions = build_definitions(list(made.values()), strict=strict, checks=False)
    assert run_job(definitions, instance, select=["raw", "middle"]).success
    return run_job(definitions, instance, select=["reader"])


def found_in(run: Any) -> list[str]:
    """The steps that the metadata of the reader lists."""
    metadata = metadata_of(run.materialized()["reader"])
    return [entry["step"] for entry in metadata.get(KEY, [])]


@pytest.mark.parametrize("on", ["inline", "process"])
@pytest.mark.parametrize("way", WAYS)
def test_an_undeclared_read_is_seen(way: str, on: str, instance: dg.DagsterInstance) -> None:
    made = steps(WAYS[way], on=on)

    run = run_reader(made, instance)

    assert run.success
    assert found_in(run) == [made["raw"].name_with_hash]


@pytest.mark.parametrize("on", ["inline", "process"])
@pytest.mark.parametrize("way", UNSEEN)
def test_what_is_no_read_of_an_output_is_not_reported(
    way: str, on: str, instance: dg.DagsterInstance
) -> None:
    run = run_reader(steps(UNSEEN[way], on=on), instance)

    assert run.success
    assert found_in(run) == []


@pytest.mark.parametrize("on", ["inline", "process"])
@pytest.mark.parametrize("deps", [("raw",), ("middle",)], ids=["direct", "transitive"])
@pytest.mark.parametrize("way", ["open", "link"])
def test_reads_of_dependencies_are_declared(
    way: str, deps: tuple[str, ...], on: str, instance: dg.DagsterInstance
) -> None:
    run = run_reader(steps(WAYS[way], on=on, reader_deps=deps), instance, strict=True)

    assert run.success
    assert found_in(run) == []


def test_a_link_inside_a_dependency_belongs_to_it(instance: dg.DagsterInstance) -> None:
    def read() -> None:
        link = undeclared("middle") / "of-raw"
        link.symlink_to(undeclared("raw"))
        (link / "data.txt").read_text()

    made = steps(read, on="inline", reader_deps=("middle",))
    alone = StepSpec("middle", fn=write)
    reader = StepSpec("reader", fn=made["reader"].fn, deps=[alone])

    run = run_reader({"raw": made["raw"], "middle": alone, "reader": reader}, instance, strict=True)

    assert run.success


def test_the_warning_is_in_the_log_of_the_step(
    instance: dg.DagsterInstance, caplog: pytest.LogCaptureFixture
) -> None:
    made = steps(WAYS["open"], on="inline")

    run = run_reader(made, instance)

    [message] = [
        entry.user_message
        for entry in instance.all_logs(run.run_id)
        if entry.step_key == "reader" and entry.level == 30
    ]
    raw, reader = made["raw"], made["reader"]
    assert message == (
        f"step {reader.name_with_hash} ({reader.output_path}): its function read outputs of steps "
        f"on which it does not depend: {raw.name_with_hash} ({raw.output_path}/data.txt). A change "
        "there does not rebuild this step. Add them to deps=[…] of the step."
    )


@pytest.mark.parametrize("on", ["inline", "process"])
def test_a_strict_step_fails_and_is_not_finished(on: str, instance: dg.DagsterInstance) -> None:
    made = steps(WAYS["open"], on=on)

    run = run_reader(made, instance, strict=True)

    assert not run.success
    assert status_of(made["reader"]) == "FAILED"
    for part in (
        "UndeclaredDependencyError",
        made["reader"].name_with_hash,
        f"{made['raw'].output_path}/data.txt",
        "deps=[…]",
    ):
        assert part in run.error("reader")
    hidden = {file.name for file in Path(made["reader"].output_path).glob(".step_*")}
    assert hidden == set()


@pytest.mark.parametrize("on", ["inline", "process"])
def test_a_job_leaves_no_file_of_its_reads(on: str, instance: dg.DagsterInstance) -> None:
    made = steps(WAYS["open"], on=on)

    assert run_reader(made, instance).success

    assert list(Path(made["reader"].output_path).glob(".step_*")) == []


def test_reads_of_one_step_are_not_those_of_another(instance: dg.DagsterInstance) -> None:
    both = threading.Barrier(2, timeout=60)

    def reading() -> None:
        both.wait()
        WAYS["open"]()
        both.wait()

    def waiting(output_path: str) -> None:
        both.wait()
        both.wait()

    made = steps(reading, on="inline")
    definitions = build_definitions([*made.values(), StepSpec("waiting", fn=waiting)])
    assert run_job(definitions, instance, select=["raw"]).success

    run = run_job(definitions, instance, select=["reader", "waiting"])

    assert run.success
    assert found_in(run) == [made["raw"].name_with_hash]
    assert KEY not in metadata_of(run.materialized()["waiting"])


@pytest.mark.parametrize("on", ["inline", "process"])
def test_a_script_that_is_strict_fails(on: str) -> None:
    made = steps(WAYS["open"], on=on)
    StepRunner().run([made["raw"]])

    with pytest.raises(StepsFailedError) as raised:
        StepRunner(strict=True).run([made["reader"]])

    assert isinstance(raised.value.exceptions[0], UndeclaredDependencyError)


def test_a_change_of_an_undeclared_input_serves_the_old_value_beside_a_warning(
    instance: dg.DagsterInstance,
) -> None:
    def graph(value: str) -> list[StepSpec]:
        def build(output_path: str) -> None:
            Path(output_path, "data.txt").write_text(value)

        a = StepSpec("a", hash_attrs={"value": value}, fn=build)

        def read(output_path: str) -> None:
            text = Path(a.output_path, "data.txt").read_text()
            Path(output_path, "data.txt").write_text(text)

        return [a, StepSpec("b", fn=read)]

    def values(made: list[StepSpec]) -> list[str]:
        return [Path(step.output_path, "data.txt").read_text() for step in made]

    old, new = graph("old"), graph("new")
    with pytest.warns(UserWarning, match=r"b_.*a_.*deps="):
        definitions = build_definitions(old)
    assert run_job(definitions, instance, select=["a"]).success
    first = run_job(definitions, instance, select=["b"])
    assert first.success
    assert [entry["step"] for entry in metadata_of(first.materialized()["b"])[KEY]] == [
        old[0].name_with_hash
    ]

    with pytest.warns(UserWarning, match=r"b_.*a_.*deps="):
        definitions = build_definitions(new)
    second = run_job(definitions, instance)

    # The fault that the warning is about: green, and wrong.
    assert second.success
    assert values(new) == ["new", "old"]
    for strict in (build_definitions, lambda made, strict: StepRunner(strict=strict).run(made)):
        with pytest.raises(UndeclaredInputsError, match=r"b_.*a_.*deps="):
            strict(new, strict=True)

    # With the dependency, b is built again.
    declared = [new[0], StepSpec("b", deps=[new[0]], fn=new[1].fn)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_job(build_definitions(declared, strict=True), instance).success
    assert values(declared) == ["new", "new"]


def test_the_hook_is_installed_when_the_first_step_runs_and_once() -> None:
    script = (
        "import sys, tempfile, os\n"
        "hooks = []\n"
        "add = sys.addaudithook\n"
        "sys.addaudithook = lambda hook: (hooks.append(hook), add(hook))\n"
        "os.environ['MARIN_PREFIX'] = tempfile.mkdtemp()\n"
        "from marin_dagster import StepRunner, StepSpec, build_definitions\n"
        "steps = [StepSpec(n, fn=lambda output_path: None) for n in 'ab']\n"
        "build_definitions(steps)\n"
        "before = len([h for h in hooks if h.__module__.startswith('marin_dagster')])\n"
        "StepRunner().run(steps)\n"
        "print(before, len([h for h in hooks if h.__module__.startswith('marin_dagster')]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["0 1"], done.stderr
