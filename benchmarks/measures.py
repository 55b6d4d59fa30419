"""What a benchmark measures, one measurement for each process.

``python measures.py NAME [ARGUMENT …]`` (arguments as JSON) prints the measurement as JSON.
``run.py`` starts these, each with a store and a Dagster instance of its own.
"""

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from audit_measures import measure_audit
from graphs import LONG_S, build_steps, finished_steps, trivial
from partition_measures import measure_partitions
from script_measures import measure_hits, measure_script


def job_for(graph: str, peer: str) -> Any:
    """The graph's job under a peer's executor; also how child processes find it again."""
    import dagster as dg

    from marin_dagster import ResourceConfig, StepSpec, build_definitions, marin_executor

    executor = {
        "marin": marin_executor,
        "process": marin_executor,
        "in_process": dg.in_process_executor,
        "multiprocess": dg.multiprocess_executor,
    }[peer]
    steps = build_steps(graph, StepSpec, ResourceConfig() if peer == "process" else None)
    return build_definitions(steps, executor=executor).resolve_job_def("materialize_steps")


def measure_run(graph: str, peer: str) -> dict[str, float]:
    """Run the graph once on an empty store and a fresh SQLite instance; wall and CPU seconds."""
    if peer == "step_runner":
        from marin.execution.step_runner import StepRunner
        from marin.execution.step_spec import StepSpec

        steps = build_steps(graph, StepSpec)
        started, cpu = time.perf_counter(), time.process_time()
        StepRunner().run(steps)
        return _elapsed(started, cpu, len(steps))

    import dagster as dg

    quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
    with dg.DagsterInstance.get() as instance:
        # The first run of an instance creates its tables.
        dg.execute_job(reconstructable("grid-1x1", "in_process"), instance, run_config=quiet)
        job = reconstructable(graph, peer)
        started, cpu = time.perf_counter(), time.process_time()
        result = dg.execute_job(job, instance, run_config=quiet)
        measured = _elapsed(started, cpu, len(job.get_definition().nodes))
    if not result.success:
        raise RuntimeError(f"{graph} under {peer} failed")
    return measured


def measure_checks(graph: str, repeats: int) -> dict[str, float]:
    """Seconds of a run of everything that builds or serves the graph, with checks and without.

    Also the seconds in which Dagster creates the run, which are part of them. The runs take turns
    in one process and one instance; the shortest of each kind counts.
    """
    import dagster as dg

    from marin_dagster import StepSpec, build_definitions
    from marin_dagster._compat import InMemoryJob, execute_run

    quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
    prefix = os.environ["MARIN_PREFIX"]
    found: dict[str, list[float]] = {}
    with dg.DagsterInstance.get() as instance:
        for turn in range(2 * repeats + 1):
            checks = turn % 2 == 1
            os.environ["MARIN_PREFIX"] = f"{prefix}/{turn}"
            definitions = build_definitions(build_steps(graph, StepSpec), checks=checks)
            for kind in ("build", "serve"):
                job = definitions.resolve_job_def("materialize_steps")
                started = time.perf_counter()
                recorded = instance.create_run_for_job(job, run_config=quiet)
                created = time.perf_counter() - started
                if not execute_run(InMemoryJob(job), recorded, instance).success:
                    raise RuntimeError(f"{graph} failed")
                if turn > 0:  # the first run of an instance creates its tables
                    name = f"{kind}_checked" if checks else kind
                    found.setdefault(name, []).append(time.perf_counter() - started)
                    name = "create_checked" if checks else "create"
                    found.setdefault(name, []).append(created)
    return {name: min(seconds) for name, seconds in found.items()}


def reconstructable(graph: str, peer: str) -> Any:
    """The job, in a form that child processes can load again."""
    import dagster as dg

    return dg.build_reconstructable_job(
        "measures",
        "reconstruct",
        ("job",),
        {"graph": graph, "peer": peer},
        reconstructor_working_directory=str(Path(__file__).parent),
    )


def _elapsed(started: float, cpu: float, steps: int) -> dict[str, float]:
    return {
        "wall": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "steps": steps,
    }


def reconstruct(kind: str, graph: str, peer: str) -> Any:
    """Called by Dagster to find the job in this or a child process."""
    return job_for(graph, peer)


def measure_decision(steps: int, latency_s: float) -> dict[str, float]:
    """Seconds to decide that nothing of ``steps`` finished steps must run: the look-up alone, and
    as a schedule's tick."""
    import dagster as dg

    from marin_dagster import MarinIOManager, StepCache, StepGraph, StepSpec, build_definitions
    from marin_dagster.cache import CacheState
    from marin_dagster.steps import plan_run

    specs = finished_steps(steps, latency_s, StepSpec)
    graph = StepGraph.from_steps(specs)
    started = time.perf_counter()
    found = StepCache().look_up_many(graph.steps.values())
    plan = plan_run(graph, is_built=lambda path: found[path].state is CacheState.HIT)
    seconds = time.perf_counter() - started
    if plan.run:
        raise RuntimeError("nothing should have to run")
    repository = build_definitions(specs, schedule="0 6 * * *").get_repository_def()
    (schedule,) = repository.schedule_defs
    repository.get_job(schedule.job_name)  # a code server has resolved it by then
    with (
        dg.DagsterInstance.get() as instance,
        dg.build_schedule_context(
            instance=instance,
            repository_def=repository,
            resources={"marin_io_manager": MarinIOManager()},
        ) as context,
    ):
        started = time.perf_counter()
        tick = schedule.evaluate_tick(context)
        tick_seconds = time.perf_counter() - started
    if tick.run_requests:
        raise RuntimeError("the tick should be skipped")
    return {"wall": seconds, "tick": tick_seconds}


def measure_schedule(unfinished: int) -> dict[str, float]:
    """Seconds of a schedule's first tick over 20 steps while runs of another job wait: with all of
    the steps finished, and with one to run."""
    import dagster as dg

    from marin_dagster import MarinIOManager, StepSpec, build_definitions

    specs = finished_steps(20, 0.0, StepSpec)
    other = dg.AssetsDefinition.from_op(dg.op(name="other")(lambda: None))
    mine = build_definitions(specs, schedule="0 6 * * *")
    theirs = dg.Definitions(assets=[other], jobs=[dg.define_asset_job("others", selection=[other])])
    repository = dg.Definitions.merge(mine, theirs).get_repository_def()
    schedule = repository.get_schedule_def("materialize_steps_schedule")
    repository.get_job(schedule.job_name)  # a code server has resolved it by then
    with dg.DagsterInstance.get() as instance:
        for _ in range(unfinished):
            instance.create_run_for_job(job_def=repository.get_job("others"))

    def tick() -> float:
        with (
            dg.DagsterInstance.get() as instance,
            dg.build_schedule_context(
                instance=instance,
                repository_def=repository,
                resources={"marin_io_manager": MarinIOManager()},
            ) as context,
        ):
            started = time.perf_counter()
            schedule.evaluate_tick(context)
            return time.perf_counter() - started

    tick()  # the first of a process imports what it needs
    cached = tick()
    Path(specs[-1].output_path, ".executor_status").unlink()
    return {"cached": cached, "one": tick()}


def measure_sensor(steps: int, latency_s: float) -> dict[str, float]:
    """Seconds of a sensor's first tick, and of one after all that is finished has been reported."""
    import dagster as dg

    from marin_dagster import StepSpec, build_definitions

    specs = finished_steps(steps, latency_s, StepSpec)
    repository = build_definitions(specs, cache_sensor=True).get_repository_def()
    sensor = repository.get_sensor_def("materialize_steps_cache_sensor")
    resources = repository.get_top_level_resources()

    with dg.DagsterInstance.get() as instance:

        def tick() -> tuple[float, float, int]:
            with dg.build_sensor_context(
                instance, repository_def=repository, resources=resources
            ) as context:
                started = time.perf_counter()
                events = sensor.evaluate_tick(context).asset_events
                evaluated = time.perf_counter()
                for event in events:
                    instance.report_runless_asset_event(event)
                return evaluated - started, time.perf_counter() - evaluated, len(events)

        first, reporting, reported = tick()
        while tick()[2]:
            pass
        return {
            "first": first,
            "event": reporting / reported,
            "reported": reported,
            "wall": tick()[0],
        }


def measure_load(steps: int) -> dict[str, float]:
    """Seconds to turn ``steps`` steps, in layers of 100 with fan-in 3, into a resolved job."""
    from marin_dagster import StepSpec, build_definitions

    build_definitions([StepSpec("warm", fn=trivial)]).resolve_job_def("materialize_steps")
    started = time.perf_counter()
    specs = build_steps(f"grid-{steps // 100}x100", StepSpec)
    build_definitions(specs).resolve_job_def("materialize_steps")
    return {"wall": time.perf_counter() - started}


def measure_import() -> dict[str, float]:
    """Seconds that importing marin_dagster adds to importing Dagster."""
    import dagster  # noqa: F401

    # Else a collection that Dagster's objects were about to need falls into our time, or not.
    gc.collect()
    started = time.perf_counter()
    from marin_dagster import build_definitions  # noqa: F401

    return {"wall": time.perf_counter() - started}


def measure_memory(steps: int) -> dict[str, float]:
    """Peak memory, in MiB, of a run of ``steps`` trivial steps, and its seconds."""
    measured = measure_run(f"grid-{steps // 100}x100", "marin")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"wall": measured["wall"], "MiB": peak}


def measure_idle() -> dict[str, float]:
    """CPU seconds of a run worker for each second in which it waits for 8 processes.

    What the run costs anyway is measured on the same graph with nothing to wait for.
    """
    short, long = measure_run("flat-8", "process"), measure_run("long-8", "process")
    return {"share": (long["cpu"] - short["cpu"]) / LONG_S}


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "run": measure_run,
    "audit": measure_audit,
    "checks": measure_checks,
    "decision": measure_decision,
    "schedule": measure_schedule,
    "sensor": measure_sensor,
    "load": measure_load,
    "import": measure_import,
    "memory": measure_memory,
    "hits": measure_hits,
    "script": measure_script,
    "partitions": measure_partitions,
    "idle": measure_idle,
}


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps(MEASURES[name](*map(json.loads, arguments))))
