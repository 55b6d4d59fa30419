"""What is special about processes of this machine."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import step_functions
from helpers.cache import result_of
from helpers.job_driver import Drive, Stopped
from helpers.processes import is_dead, wait_until
from helpers.runner_conformance import is_waiting, pids_of
from helpers.step_functions import wait_for
from marin_dagster import ResourceConfig, StepSpec, remote
from marin_dagster.errors import JobFailedError, JobLostError, RemoteFunctionError
from marin_dagster.runners import JobState, ProcessSettings, Request, gpus
from marin_dagster.runners.process import ProcessRunner

SMALL = ResourceConfig(ram="256m")


@pytest.fixture(autouse=True)
def _gpus_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(gpus, "_LOCKS", tmp_path / "locks")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def runner() -> Iterator[ProcessRunner]:
    with_two_gpus = ProcessRunner(settings=ProcessSettings(gpus=2, env={"FROM": "settings"}))
    yield with_two_gpus
    with_two_gpus.close()


def run(runner: ProcessRunner, fn: Callable[[str], Any], **fields: Any) -> dict[str, Any]:
    step = StepSpec("step", fn=fn, **({"resources": SMALL} | fields))
    Drive(step, runner).start().end()
    return result_of(step)


def test_environment_of_the_run_worker_the_runner_and_the_step(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_RUN_WORKER", "yes")

    @remote(env_vars={"FROM": "step", "MORE": "1"})
    def build(output_path: str) -> dict[str, Any]:
        names = ("OF_THE_RUN_WORKER", "FROM", "MORE", "MARIN_PREFIX")
        return {name: os.environ[name] for name in names}

    found = run(runner, build, resources=None)

    assert found == {
        "OF_THE_RUN_WORKER": "yes",
        "FROM": "step",
        "MORE": "1",
        "MARIN_PREFIX": os.environ["MARIN_PREFIX"],
    }


def test_a_run_worker_that_is_a_rank_of_something_makes_no_ranks_of_its_steps(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")

    assert "pid" in run(runner, step_functions.write)


def test_a_relative_prefix_is_absolute_for_the_process(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MARIN_PREFIX", "relative")

    def build(output_path: str) -> dict[str, Any]:
        return {"prefix": os.environ["MARIN_PREFIX"], "folder": os.getcwd()}

    assert run(runner, build) == {"prefix": str(tmp_path / "relative"), "folder": str(tmp_path)}


def test_memory_is_limited_to_what_the_step_asks_for(runner: ProcessRunner) -> None:
    import resource

    def build(output_path: str) -> dict[str, Any]:
        return {"limit": resource.getrlimit(resource.RLIMIT_DATA)[0]}

    assert run(runner, build) == {"limit": 256 << 20}


def test_running_out_of_memory_by_small_pieces_is_named(runner: ProcessRunner) -> None:
    def build(output_path: str) -> None:
        held = []
        while True:
            held.append(bytearray(1000))

    with pytest.raises(RemoteFunctionError, match="out of memory"):
        run(runner, build)


def test_memory_errors_of_array_libraries_are_named(runner: ProcessRunner) -> None:
    def build(output_path: str) -> None:
        import numpy as np

        np.ones(1 << 30)

    with pytest.raises(RemoteFunctionError, match="out of memory"):
        run(runner, build)


FORKING = """
import multiprocessing, os, pathlib, sys, time
sys.path[:0] = {path!r}
from helpers.job_driver import Drive, Engine
from helpers import step_functions
step = Engine("process").step("orphan", step_functions.wait_to_go)
drive = Drive(step, Engine("process").runner()).start()
drive.until(lambda: (pathlib.Path(step.output_path) / "pids").exists())
child = os.fork()
if child == 0:
    time.sleep(600)
pathlib.Path(step.output_path + ".forked").write_text(str(child))
time.sleep(600)
"""


def test_steps_die_with_the_run_worker_although_it_has_forked() -> None:
    path = [str(Path(__file__).parents[1]), *sys.path]
    worker = subprocess.Popen([sys.executable, "-c", FORKING.format(path=path)])
    step = StepSpec("orphan", fn=step_functions.wait_to_go)
    forked = step_functions.beside(step.output_path, "forked")
    wait_for(forked)
    wait_until(lambda: is_waiting(step))
    try:
        worker.kill()
        worker.wait()

        wait_until(lambda: all(is_dead(pid) for pid in pids_of(step)))
    finally:
        os.kill(int(forked.read_text()), signal.SIGKILL)


def test_memory_is_not_limited_when_the_settings_say_so() -> None:
    import resource

    runner = ProcessRunner(settings=ProcessSettings(limit_memory=False))

    def build(output_path: str) -> dict[str, Any]:
        return {"limit": resource.getrlimit(resource.RLIMIT_DATA)[0]}

    try:
        assert run(runner, build) == {"limit": resource.getrlimit(resource.RLIMIT_DATA)[0]}
    finally:
        runner.close()


def test_steps_get_gpus_of_their_own_while_there_are_enough(runner: ProcessRunner) -> None:
    def build(output_path: str) -> dict[str, Any]:
        Path(output_path, "gpu").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        wait_for(Path(output_path, "go"))
        return {"gpus": os.environ["CUDA_VISIBLE_DEVICES"]}

    one_gpu = ResourceConfig.with_gpu("auto")
    steps = [StepSpec(name, fn=build, resources=one_gpu) for name in ("first", "second")]
    drives = [Drive(step, runner).start() for step in steps]
    for drive, step in zip(drives, steps, strict=True):
        drive.until(lambda step=step: Path(step.output_path, "gpu").exists())
        drive.until(lambda step=step: Path(step.output_path, "gpu").read_text())
    for drive, step in zip(drives, steps, strict=True):
        Path(step.output_path, "go").write_text("go")
        drive.end()

    assert sorted(result_of(step)["gpus"] for step in steps) == ["0", "1"]
    both = run(runner, lambda _: {"gpus": os.environ["CUDA_VISIBLE_DEVICES"]},
               resources=ResourceConfig.with_gpu("auto", count=2))  # fmt: skip
    assert both == {"gpus": "0,1"}


def with_gpus(
    visible: str | None, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> ProcessRunner:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    return ProcessRunner(settings=ProcessSettings(**settings))


@pytest.mark.parametrize(
    ("visible", "settings", "given"),
    [
        ("4,5", {}, "4"),
        ("4,5", {"gpus": 1}, "4"),
        ("4,5", {"gpus": 3}, "4"),
        ("GPU-8932f937, 1", {}, "GPU-8932f937"),
        ("5,-1,6", {}, "5"),
        ("4,5", {"env": {"CUDA_VISIBLE_DEVICES": "6"}}, "6"),
        (None, {"gpus": 1}, "0"),
    ],
)
def test_a_step_gets_gpus_that_the_run_worker_sees(
    visible: str | None, settings: dict[str, Any], given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = with_gpus(visible, monkeypatch, **settings)
    try:
        found = run(
            runner,
            lambda _: {"gpus": os.environ["CUDA_VISIBLE_DEVICES"]},
            resources=ResourceConfig.with_gpu("auto"),
        )
    finally:
        runner.close()
    assert found == {"gpus": given}


@pytest.mark.parametrize(
    ("visible", "settings", "named"),
    [
        ("", {}, "0 GPUs by CUDA_VISIBLE_DEVICES=''"),
        ("", {"gpus": 4}, "0 GPUs by CUDA_VISIBLE_DEVICES=''"),
        ("-1", {"gpus": 4}, "0 GPUs by CUDA_VISIBLE_DEVICES='-1'"),
        ("4", {"gpus": 4}, "1 GPUs by CUDA_VISIBLE_DEVICES='4'"),
        ("4,4", {"gpus": 4}, "1 GPUs by CUDA_VISIBLE_DEVICES='4,4'"),
        (None, {"gpus": 1}, "1 GPUs by the setting gpus"),
    ],
)
def test_more_gpus_than_the_run_worker_sees_are_refused(
    visible: str | None, settings: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = with_gpus(visible, monkeypatch, **settings)
    step = StepSpec("step", fn=step_functions.write, resources=ResourceConfig.with_gpu("auto", 2))

    assert named in (runner.refuses(step, Request.of(step)) or "")


def use_gpus(output_path: str) -> dict[str, Any]:
    """How many use GPUs at once, and which this one does."""
    here = Path(output_path).parent / "running"
    here.mkdir(exist_ok=True)
    mine = here / Path(output_path).name
    mine.touch()
    wait_for(here.parent / "go")
    running = len(list(here.iterdir()))
    mine.unlink()
    return {"running": running, "gpus": os.environ["CUDA_VISIBLE_DEVICES"]}


@pytest.mark.parametrize("runs", [1, 2])
def test_no_two_steps_of_this_machine_share_a_gpu(
    runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runners = [with_gpus("4,5", monkeypatch) for _ in range(runs)]
    store = tmp_path / "store"
    steps = [
        StepSpec(
            f"gpu{number}",
            fn=use_gpus,
            resources=ResourceConfig.with_gpu("auto"),
            output_path_prefix=str(store),
        )
        for number in range(4)
    ]
    try:
        drives = [Drive(step, runners[n % runs]).start() for n, step in enumerate(steps)]

        def waiting() -> list[Drive]:
            return [d for d in drives if "waiting for 1 of 2 GPUs" in d.text("stderr")]

        def begun() -> list[str]:
            return [path.name for path in (store / "running").glob("*")]

        drives[0].until(lambda: len(begun()) + len(waiting()) >= 4 and len(begun()) >= 2)
        assert len(begun()) == 2
        (store / "go").write_text("go")
        for drive in drives:
            drive.end()
    finally:
        for runner in runners:
            runner.close()
    assert max(result_of(step)["running"] for step in steps) <= 2
    assert {result_of(step)["gpus"] for step in steps} == {"4", "5"}


def test_a_step_that_waits_for_a_gpu_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = gpus.take_gpus(["4"], 1)
    assert held is not None
    runner = with_gpus("4", monkeypatch)
    one_gpu = ResourceConfig.with_gpu("auto")
    waiting = Drive(StepSpec("first", fn=step_functions.write, resources=one_gpu), runner).start()
    later = Drive(StepSpec("second", fn=step_functions.write, resources=one_gpu), runner).start()
    try:
        waiting.until(lambda: "waiting for 1" in waiting.text("stderr"))

        waiting.stop()
        with pytest.raises(Stopped):
            waiting.end()

        assert waiting.job is not None
        assert waiting.job.status.state is JobState.CANCELLED
        gpus.free_gpus(held)
        later.end()
    finally:
        runner.close()


def test_a_gpu_is_free_when_who_holds_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import pathlib, sys, time; from marin_dagster.runners import gpus;"
            "gpus._LOCKS = pathlib.Path(sys.argv[1]); held = gpus.take_gpus(['4', '5'], 2);"
            "print(len(held), flush=True); time.sleep(600)",
            str(gpus._LOCKS),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "2\n"
    assert gpus.take_gpus(["4", "5"], 1) is None

    holder.kill()
    holder.wait()

    both = gpus.take_gpus(["4", "5"], 2)
    assert both is not None
    gpus.free_gpus(both)


def test_of_too_few_gpus_none_is_taken(tmp_path: Path) -> None:
    one = gpus.take_gpus(["4"], 1)
    assert one is not None

    assert gpus.take_gpus(["4", "5"], 2) is None

    other = gpus.take_gpus(["4", "5"], 1)
    assert other is not None
    assert list(other) == ["5"]
    gpus.free_gpus(one | other)


@pytest.mark.parametrize(
    ("resources", "named"),
    [
        (ResourceConfig.with_tpu("v4-8"), "v4-8"),
        (ResourceConfig.with_gpu("H100", count=3), "2 GPUs"),
        (ResourceConfig(replicas=2), "replicas=2"),
        (ResourceConfig(ram="16"), "16 bytes"),
        (ResourceConfig(image="ubuntu"), "image='ubuntu'"),
        (ResourceConfig(container_profile="big"), "container_profile='big'"),
        (ResourceConfig(zone="us-central1-a"), "zone='us-central1-a'"),
        (ResourceConfig(target_cluster="other"), "target_cluster='other'"),
        (ResourceConfig(regions=["us-central1"]), "regions=['us-central1']"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_cannot_honour_is_refused(
    runner: ProcessRunner, resources: ResourceConfig, named: str
) -> None:
    step = StepSpec("step", fn=step_functions.write, resources=resources)

    assert named in (runner.refuses(step, Request.of(step)) or "")


@pytest.mark.parametrize("packages", ["pip_packages", "pip_dependency_groups"])
def test_packages_are_refused(runner: ProcessRunner, packages: str) -> None:
    step = StepSpec("step", fn=remote(**{packages: ["jax"]})(step_functions.write))  # type: ignore[call-overload]

    assert packages in (runner.refuses(step, Request.of(step)) or "")


@pytest.mark.parametrize(
    "resources",
    [None, ResourceConfig(), ResourceConfig(regions=["*"]), ResourceConfig.with_gpu("H100")],
)
def test_what_it_can_honour_is_taken(
    runner: ProcessRunner, resources: ResourceConfig | None
) -> None:
    step = StepSpec("step", fn=step_functions.write, resources=resources)

    assert runner.refuses(step, Request.of(step)) is None


def test_a_process_that_a_step_leaves_behind_is_killed(runner: ProcessRunner) -> None:
    def build(output_path: str) -> dict[str, Any]:
        return {"pid": subprocess.Popen(["sleep", "600"]).pid}

    assert is_dead(run(runner, build)["pid"])


def test_a_process_that_holds_the_log_open_holds_nobody_up(runner: ProcessRunner) -> None:
    def build(output_path: str) -> dict[str, Any]:
        # In a session of its own, so it is not killed with the step.
        return {"pid": subprocess.Popen(["sleep", "600"], start_new_session=True).pid}

    pid = run(runner, build)["pid"]

    assert not is_dead(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_step_that_ignores_sigterm_is_killed(runner: ProcessRunner) -> None:
    def build(output_path: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        step_functions.wait_to_go(output_path)

    step = StepSpec("stubborn", fn=build, resources=SMALL)
    drive = Drive(step, runner).start()
    drive.until(lambda: is_waiting(step))

    drive.stop()
    with pytest.raises(Stopped):
        drive.end()

    assert all(is_dead(pid) for pid in pids_of(step))


def test_a_signal_from_outside_is_named(runner: ProcessRunner) -> None:
    step = StepSpec("killed", fn=step_functions.wait_to_go, resources=SMALL)
    drive = Drive(step, runner).start()
    drive.until(lambda: is_waiting(step))

    os.kill(pids_of(step)[0], signal.SIGKILL)

    with pytest.raises(JobFailedError, match=r"signal 9 \(SIGKILL\)"):
        drive.end()


def test_when_the_small_process_dies_its_steps_are_lost_and_the_next_one_starts_anew(
    runner: ProcessRunner,
) -> None:
    step = StepSpec("lost", fn=step_functions.wait_to_go, resources=SMALL)
    drive = Drive(step, runner).start()
    drive.until(lambda: is_waiting(step))

    assert runner._zygote.process is not None
    runner._zygote.process.send_signal(signal.SIGKILL)

    with pytest.raises(JobLostError, match="has died"):
        drive.end()
    wait_until(lambda: is_dead(pids_of(step)[0]))
    assert "pid" in run(runner, step_functions.write)


def test_close_ends_what_runs_and_a_closed_runner_starts_anew(runner: ProcessRunner) -> None:
    step = StepSpec("closed", fn=step_functions.wait_to_go, resources=SMALL)
    drive = Drive(step, runner).start()
    drive.until(lambda: is_waiting(step))

    runner.close()

    with pytest.raises(JobLostError, match="has died"):
        drive.end()
    wait_until(lambda: all(is_dead(pid) for pid in pids_of(step)))
    assert "pid" in run(runner, step_functions.write)


def test_no_descriptor_and_no_thread_is_left(runner: ProcessRunner) -> None:
    run(runner, step_functions.write)
    runner.close()
    descriptors = os.listdir("/proc/self/fd")
    threads = threading.active_count()

    for number in range(3):
        run(runner, step_functions.write, hash_attrs={"number": number})
    runner.close()

    assert len(os.listdir("/proc/self/fd")) == len(descriptors)
    assert threading.active_count() <= threads


def test_an_exit_of_the_function_is_a_failure(runner: ProcessRunner) -> None:
    def build(output_path: str) -> None:
        raise SystemExit(0)

    with pytest.raises(Exception, match="SystemExit"):
        run(runner, build)


def test_an_exit_behind_pythons_back_is_a_failure(runner: ProcessRunner) -> None:
    with pytest.raises(JobFailedError, match="exit code 3"):
        run(runner, lambda _: os._exit(3))


def test_an_exit_behind_pythons_back_with_code_0_is_no_success(runner: ProcessRunner) -> None:
    with pytest.raises(JobFailedError, match="no record"):
        run(runner, lambda _: os._exit(0))
