"""Measurements of graphs with partitions: a run for each point of a sweep, or one run of all."""

import time
from pathlib import Path
from typing import Any

NAMES = ("prepare", "train", "evaluate")


def measure_partitions(points: int, peer: str, runs: str) -> dict[str, float]:
    """Seconds to build a sweep of three steps for each point.

    Args:
        points: points of the sweep.
        peer: ``marin``, or ``in_process`` for Dagster's own assets and executor.
        runs: ``multi`` for a run of each point, ``single`` for one of all.
    """
    import dagster as dg

    from marin_dagster._compat import InMemoryJob, execute_run

    keys = [f"p{number:04}" for number in range(points)]
    definition = dg.StaticPartitionsDefinition(keys)
    definitions = _ours(definition) if peer == "marin" else _dagsters(definition)
    job = definitions.resolve_job_def("materialize_steps")
    quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
    ranges = [(keys[0], keys[-1])] if runs == "single" else [(key, key) for key in keys]
    with dg.DagsterInstance.get() as instance:
        began = time.perf_counter()
        for first, last in ranges:
            tags = {
                "dagster/asset_partition_range_start": first,
                "dagster/asset_partition_range_end": last,
            }
            run = instance.create_run_for_job(job, run_config=quiet, tags=tags)
            if not execute_run(InMemoryJob(job), run, instance).success:
                raise RuntimeError("the run failed")
        wall = time.perf_counter() - began
        built = len(instance.get_materialized_partitions(dg.AssetKey("evaluate")))
        if built != points:
            raise RuntimeError(f"{built} of {points} points were built")
    return {"wall": wall, "steps": float(points * len(NAMES))}


def _ours(definition: Any) -> Any:
    from marin_dagster import StepSpec, build_definitions

    def work(output_path: str) -> None:
        Path(output_path, "data").write_text("1")

    def steps_for(key: str) -> list[Any]:
        steps: list[Any] = []
        for name in NAMES:
            steps = [StepSpec(name, deps=steps, fn=work, hash_attrs={"point": key})]
        return steps

    return build_definitions(steps_for, partitions_def=definition, checks=False)


def _dagsters(definition: Any) -> Any:
    import dagster as dg

    def asset(name: str, deps: list[str]) -> Any:
        @dg.asset(name=name, deps=deps, partitions_def=definition)
        def build(context: dg.AssetExecutionContext) -> None:
            for _ in context.partition_keys:
                pass

        return build

    assets = [
        asset(name, [before] if before else [])
        for before, name in zip(("", *NAMES), NAMES, strict=False)
    ]
    job = dg.define_asset_job("materialize_steps", executor_def=dg.in_process_executor)
    return dg.Definitions(assets=assets, jobs=[job])
