"""Measurements of what is cached already, and of scripts."""

import os
import time
from pathlib import Path
from typing import Any

from graphs import build_steps, finished_steps

REPEATS = 3


def measure_hits(steps: int) -> dict[str, float]:
    """Milliseconds for each of ``steps`` finished steps in runs of all of them.

    The first run records the outputs; for the others they are known.
    """
    import dagster as dg

    from marin_dagster import StepSpec, build_definitions
    from marin_dagster._compat import InMemoryJob, execute_run

    definitions = build_definitions(finished_steps(steps, 0.0, StepSpec), checks=False)
    job = definitions.resolve_job_def("materialize_steps")
    quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
    selected = frozenset(job.asset_layer.executable_asset_keys)
    found: list[tuple[float, float]] = []
    with dg.DagsterInstance.get() as instance:
        for _ in range(REPEATS + 1):
            began = time.perf_counter()
            # The selection is recorded, as when the UI launches the run.
            run = instance.create_run_for_job(job, run_config=quiet, asset_selection=selected)
            created = time.perf_counter()
            if not execute_run(InMemoryJob(job), run, instance).success:
                raise RuntimeError("the run failed")
            found.append((created - began, time.perf_counter() - created))
    known = found[1:]
    return {
        "create": min(seconds for seconds, _ in known) / steps * 1000,
        "new": found[0][1] / steps * 1000,
        "known": min(seconds for _, seconds in known) / steps * 1000,
    }


def measure_script(what: str, graph: str, peer: str) -> dict[str, float]:
    """Seconds of ``StepRunner().run`` in a script without an instance, ours or Marin's.

    Args:
        what: ``build``; ``cached``, with every output finished; or ``dry``, a dry run of these.
        graph: the graph.
        peer: ``ours`` or ``marins``.
    """
    runner_class, step_class = _marins() if peer == "marins" else _ours()
    os.environ.pop("DAGSTER_HOME", None)
    if what != "build":
        for step in build_steps(graph, step_class):
            folder = Path(step.output_path)
            folder.mkdir(parents=True)
            folder.joinpath(".executor_status").write_text("SUCCESS")
    seconds: list[float] = []
    for _ in range(1 if what == "build" else REPEATS):
        steps = build_steps(graph, step_class)
        began = time.perf_counter()
        runner_class().run(steps, dry_run=what == "dry")
        seconds.append(time.perf_counter() - began)
    return {"wall": min(seconds)}


def _ours() -> tuple[Any, Any]:
    from marin_dagster import StepRunner, StepSpec

    return StepRunner, StepSpec


def _marins() -> tuple[Any, Any]:
    from marin.execution.step_runner import StepRunner
    from marin.execution.step_spec import StepSpec

    return StepRunner, StepSpec
